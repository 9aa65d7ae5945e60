/** Terminal escapes of a log: colours become classes, everything else is dropped. Pure. */

/** A piece of a line with the classes of its colours. */
export interface Piece {
  text: string;
  style: string;
}

/** The colours in force, carried from line to line. */
export interface Style {
  fore: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
}
export const PLAIN: Style = { fore: "", bold: false, dim: false, italic: false, underline: false };

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"] as const;

// CSI (colours are those that end in m), OSC and other strings up to BEL or ST, two-character escapes.
const ESCAPE =
  // eslint-disable-next-line no-control-regex -- escapes are what is looked for
  /(?:\x1b\[|\x9b)([0-?]*)[ -/]*([@-~])|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?/g;
// eslint-disable-next-line no-control-regex -- the first character of every escape
const ESCAPED = /[\x1b\x80-\x9f]/;
// eslint-disable-next-line no-control-regex -- tabs stay
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** The pieces of a line, and the style after it. What a carriage return overwrote is dropped. */
export function parseLine(line: string, before: Style): { pieces: Piece[]; after: Style } {
  let style = before;
  let pieces: Piece[] = [];
  let from = 0;
  const add = (text: string): void => {
    // A carriage return within the line begins it anew, as a progress bar does.
    const last = text.lastIndexOf("\r");
    if (last >= 0) pieces = [];
    const clean = text.slice(last + 1).replace(CONTROL, "");
    if (!clean) return;
    const classes = classesOf(style);
    const previous = pieces.at(-1);
    if (previous?.style === classes) previous.text += clean;
    else pieces.push({ text: clean, style: classes });
  };
  const text = line.replace(/\r+$/, "");
  if (!ESCAPED.test(text)) {
    add(text);
    return { pieces, after: style };
  }
  for (const found of text.matchAll(ESCAPE)) {
    add(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2] === "m") style = turned(style, found[1] ?? "");
  }
  add(text.slice(from));
  return { pieces, after: style };
}

/** The text of a line without any escape. */
export function plainText(pieces: readonly Piece[]): string {
  return pieces.map((piece) => piece.text).join("");
}

function classesOf(style: Style): string {
  const { fore, bold, dim, italic, underline } = style;
  const found = [fore && `ansi-${fore}`, bold && "ansi-bold", dim && "ansi-dim"];
  return [...found, italic && "ansi-italic", underline && "ansi-underline"].filter(Boolean).join(" ");
}

/** The style after a sequence `ESC [ codes m`. Grounds are dropped: text must stay legible in both themes. */
function turned(before: Style, codes: string): Style {
  const style = { ...before };
  const numbers = codes.split(/[;:]/).map((code) => Number(code || 0));
  for (let place = 0; place < numbers.length; place++) {
    const code = numbers[place] ?? 0;
    if (code === 0) Object.assign(style, PLAIN);
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code >= 30 && code <= 37) style.fore = NAMES[code - 30] ?? "";
    else if (code >= 90 && code <= 97) style.fore = NAMES[code - 90] ?? "";
    else if (code === 39) style.fore = "";
    else if (code === 38 || code === 48) {
      const palette = numbers[place + 1] === 5;
      const chosen = palette ? (numbers[place + 2] ?? 0) : nearest(numbers.slice(place + 2, place + 5));
      if (code === 38) style.fore = palette ? ofPalette(chosen) : (NAMES[chosen] ?? "");
      place += palette ? 2 : 4;
    }
  }
  return style;
}

/** A colour of the palette of 256 as one of the eight. */
function ofPalette(number: number): string {
  if (number < 16) return NAMES[number % 8] ?? "";
  if (number >= 232) return number < 244 ? "black" : "white";
  const cube = number - 16;
  const levels = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
  return NAMES[nearest(levels.map((level) => level * 51))] ?? "";
}

function nearest(rgb: readonly number[]): number {
  const most = Math.max(...rgb, 1);
  return rgb.slice(0, 3).reduce((sum, part, bit) => sum + (part > most * 0.6 && part > 64 ? 1 << bit : 0), 0);
}
