/** Lets Node's own test runner read the sources as Vite does: imports without an ending, and JSX. */

import { existsSync, readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { fileURLToPath } from "node:url";
import ts from "typescript";

process.env.TZ = "Asia/Tokyo"; // a zone that no test can take for UTC
const ENDINGS = [".ts", ".tsx"];
const OPTIONS = {
  target: ts.ScriptTarget.ES2023,
  module: ts.ModuleKind.ESNext,
  jsx: ts.JsxEmit.ReactJSX,
  jsxImportSource: "preact",
  verbatimModuleSyntax: true,
};

registerHooks({
  resolve(specifier, context, next) {
    if (specifier.startsWith(".") && context.parentURL?.startsWith("file:")) {
      const wanted = new URL(specifier, context.parentURL);
      const ending = ENDINGS.find((one) => existsSync(fileURLToPath(wanted) + one));
      if (ending !== undefined) return next(specifier + ending, context);
    }
    return next(specifier, context);
  },
  load(url, context, next) {
    if (!url.startsWith("file:") || !ENDINGS.some((one) => url.endsWith(one))) return next(url, context);
    const fileName = fileURLToPath(url);
    const { outputText } = ts.transpileModule(readFileSync(fileName, "utf8"), { compilerOptions: OPTIONS, fileName });
    return { format: "module", source: outputText, shortCircuit: true };
  },
});
