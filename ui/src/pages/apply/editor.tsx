import { useRef } from "preact/hooks";
import { plural } from "../../format/numbers";
import { Words } from "../../parts/words";
import type { LineProblem } from "./document";

interface EditorProps {
  text: string;
  problems: readonly LineProblem[];
  onInput: (text: string) => void;
}

/** The manifest with numbered lines. Each problem stands at its line, and below in words. */
export function Editor({ text, problems, onInput }: EditorProps) {
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const wrong = new Set(problems.map((problem) => problem.line));
  const lines = text.split("\n");
  const goTo = (line: number): void => {
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    area.current?.focus();
    area.current?.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  };
  return (
    <div class="editor">
      <div class="editor-text">
        <div class="gutter" ref={gutter} aria-hidden="true">
          {lines.map((_, index) => (
            <span key={index} class={wrong.has(index + 1) ? "wrong" : undefined} data-line={index + 1}>
              {index + 1}
            </span>
          ))}
        </div>
        <textarea
          ref={area}
          aria-label="Manifest"
          aria-describedby="problems"
          aria-invalid={problems.length > 0 ? true : undefined}
          spellcheck={false}
          autocapitalize="off"
          wrap="off"
          rows={Math.min(40, Math.max(16, lines.length + 1))}
          value={text}
          onInput={(event) => onInput(event.currentTarget.value)}
          onScroll={(event) => {
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
        />
      </div>
      <div id="problems" role="status">
        {problems.length > 0 && (
          <>
            <p class="refused">{plural(problems.length, "problem")}</p>
            <ul class="problems">
              {problems.map(({ line, path, message }) => (
                <li key={`${line} ${path} ${message}`}>
                  <button type="button" class="plain" onClick={() => goTo(line)}>
                    Line {line}
                  </button>{" "}
                  <span>
                    {path && <code>{path}</code>} <Words text={message} />
                  </span>
                </li>
              ))}
            </ul>
          </>
        )}
      </div>
    </div>
  );
}
