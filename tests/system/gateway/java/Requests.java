import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** Sends requests with the JDK's client as it is by default: over plain HTTP it offers h2c with each of them. */
public final class Requests {
    private static final String CHAT = "{\"model\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"[simulate tokens=5]\"}]";
    private static final String FORM = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nchat\r\n"
        + "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + "RIFF".repeat(100_000) + "\r\n--b--\r\n";
    private static final String MANIFEST = "{\"kind\": \"Deployment\", \"name\": \"other\", \"engine\": \"simulated\", \"resources\": {\"gpus\": 0}}";

    private Requests() {}

    /** Prints a line for each request: its name, the status, the answer without line breaks. */
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        String key = arguments[1];
        HttpClient client = HttpClient.newHttpClient();
        for (int round = 0; round < 2; round++) {
            send(client, "chat", url + "/v1/chat/completions", key, "application/json", whole(CHAT + "}"));
            send(client, "chunked", url + "/v1/chat/completions", key, "application/json", chunked(CHAT + "}"));
            send(client, "stream", url + "/v1/chat/completions", key, "application/json", whole(CHAT + ", \"stream\": true}"));
            send(client, "form", url + "/v1/audio/transcriptions", key, "multipart/form-data; boundary=b", whole(FORM));
            send(client, "chunked-form", url + "/v1/audio/transcriptions", key, "multipart/form-data; boundary=b", chunked(FORM));
            send(client, "plan", url + "/api/v1/plan", key, "application/json", whole("{\"manifests\": [" + MANIFEST + "]}"));
            send(client, "models", url + "/v1/models", key, null, null);
        }
    }

    private static BodyPublisher whole(String body) {
        return BodyPublishers.ofString(body);
    }

    private static BodyPublisher chunked(String body) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        return BodyPublishers.ofInputStream(() -> new java.io.ByteArrayInputStream(bytes));
    }

    private static void send(HttpClient client, String name, String url, String key, String type, BodyPublisher body)
            throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofSeconds(20));
        request.header("Authorization", "Bearer " + key);
        if (body != null) {
            request.header("Content-Type", type).POST(body);
        }
        HttpResponse<InputStream> answer = client.send(request.build(), BodyHandlers.ofInputStream());
        String text = new String(answer.body().readAllBytes(), StandardCharsets.UTF_8);
        System.out.println(name + " " + answer.statusCode() + " " + text.replaceAll("\\s+", " "));
    }
}
