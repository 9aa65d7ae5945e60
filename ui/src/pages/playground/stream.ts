/** Answers of a model as they come: server-sent events of an OpenAI-compatible endpoint. Pure but for the reader. */

export interface Piece {
  text: string;
  tokens: number | null;
  done: boolean;
}

/** The pieces in complete lines of a stream, and the incomplete rest. */
export function piecesOf(buffer: string): { pieces: Piece[]; rest: string } {
  const lines = buffer.split(/\r?\n/);
  const rest = lines.pop() ?? "";
  return { pieces: lines.flatMap(pieceOf), rest };
}

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null } }[];
  usage?: { completion_tokens?: number } | null;
}

function pieceOf(line: string): Piece[] {
  if (!line.startsWith("data:")) return [];
  const data = line.slice(5).trim();
  if (data === "[DONE]") return [{ text: "", tokens: null, done: true }];
  try {
    const chunk = JSON.parse(data) as Chunk;
    const delta = chunk.choices?.[0]?.delta;
    const text = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
    return [{ text, tokens: chunk.usage?.completion_tokens ?? null, done: false }];
  } catch {
    return [];
  }
}
