import { useSignal } from "@preact/signals";
import { request } from "../../api/request";
import type { KeyCreated } from "../../api/types";
import { Act } from "../../parts/act";

const ROLES = ["viewer", "operator", "admin", "inference"] as const;
const NOTHING = {
  name: "",
  role: "viewer",
  models: "",
  expires: "",
  rpm: "",
  tpm: "",
  tokens_per_day: "",
  parallel: "",
};
type Fields = typeof NOTHING;

const LIMITS = [
  ["rpm", "Requests per minute"],
  ["tpm", "Tokens per minute"],
  ["tokens_per_day", "Tokens per day"],
  ["parallel", "Requests at once"],
] as const;

/** Whether a key of this role may ask models: only then it has limits. */
function asks(role: string): boolean {
  return role !== "viewer";
}

/** The body of the request; a limit that is not set is left out. */
function bodyOf({ name, role, models, expires, ...limits }: Fields): Record<string, unknown> {
  const body: Record<string, unknown> = { name: name.trim(), role };
  if (expires.trim()) body.expires_s = expires.trim();
  if (!asks(role)) return body;
  const named = models.split(",").flatMap((one) => one.trim() || []);
  if (named.length) body.models = named;
  for (const [key, value] of Object.entries(limits)) if (value.trim()) body[key] = Number(value);
  return body;
}

/** Makes a key with its limits. */
export function NewKey({ onMade }: { onMade: (made: KeyCreated) => void }) {
  const fields = useSignal<Fields>(NOTHING);
  const set = (changed: Partial<Fields>): void => void (fields.value = { ...fields.value, ...changed });
  return (
    <Act
      right="administer"
      onAct={async () => onMade(await request<KeyCreated>("keys", { method: "POST", body: bodyOf(fields.value) }))}
      confirm={() => {
        fields.value = NOTHING;
        return {
          title: "Make an API key",
          lines: [],
          verb: "Make key",
          ready: () => LIMITS.every(([key]) => /^\d*$/.test(fields.value[key].trim())),
          form: () => <Form fields={fields.value} set={set} />,
        };
      }}
    >
      Make a key
    </Act>
  );
}

function Form({ fields, set }: { fields: Fields; set: (changed: Partial<Fields>) => void }) {
  const text = (key: keyof Fields, title: string, placeholder: string) => (
    <label>
      {title}
      <input
        value={fields[key]}
        placeholder={placeholder}
        maxLength={200}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => set({ [key]: event.currentTarget.value })}
      />
    </label>
  );
  return (
    <div class="form-fields">
      {text("name", "Name", "")}
      <label>
        Role
        <select value={fields.role} onChange={(event) => set({ role: event.currentTarget.value })}>
          {ROLES.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      {text("expires", "Expires in", "never; 30d")}
      {asks(fields.role) && text("models", "Models", "all; chat, team-*")}
      {asks(fields.role) && LIMITS.map(([key, title]) => <span key={key}>{text(key, title, "no limit")}</span>)}
    </div>
  );
}
