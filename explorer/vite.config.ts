// Builds one file: script and style stand in the page, which then needs nothing else.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const root = import.meta.dirname;

/** A hash of all that the page is made of; tests/explorer/test_template.py computes the same. */
function hashSources(): string {
  const files: string[] = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
  const walk = (folder: string): void => {
    for (const name of readdirSync(folder)) {
      const path = join(folder, name);
      if (statSync(path).isDirectory()) walk(path);
      else files.push(relative(root, path));
    }
  };
  walk(join(root, "src"));
  const hash = createHash("sha256");
  for (const name of files.sort()) hash.update(`${name}\0`).update(readFileSync(join(root, name)));
  return hash.digest("hex");
}

/** Puts script and style into the page. */
function inline(): Plugin {
  return {
    name: "inline",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("there is no page");
      let text = String(page.source).replace("__SOURCES__", hashSources());
      for (const [name, part] of Object.entries(bundle)) {
        if (part.type === "chunk") {
          const code = part.code.replaceAll("</script", "<\\/script");
          text = text.replace(/<script type="module"[^>]*><\/script>\s*/, "");
          text = text.replace("</body>", () => `<script type="module">${code}</script>\n</body>`);
          delete bundle[name];
        } else if (name.endsWith(".css")) {
          const style = `<style>${String(part.source).trim()}</style>`;
          text = text.replace(/<link rel="stylesheet"[^>]*>/, () => style);
          delete bundle[name];
        }
      }
      const legal = readFileSync(join(root, "node_modules/@dagrejs/dagre/LICENSE"), "utf8");
      text = text.replace("<head>", () => `<head>\n<!-- The layout is that of @dagrejs/dagre:\n${legal.trim()}\n-->`);
      page.source = text;
      page.fileName = "template.html";
    },
  };
}

export default defineConfig({
  root,
  base: "./",
  plugins: [inline()],
  build: {
    outDir: join(root, "../lostwax/explorer"),
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 1e9,
    cssCodeSplit: false,
    reportCompressedSize: false,
  },
});
