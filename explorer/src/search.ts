// Search in names, operators, types, modules and source lines of one program.

import type { Page, Program } from "./data";

export class Search {
  private texts: string[] | null = null;

  constructor(private readonly page: Page, readonly program: Program) {}

  /** The nodes of which every word is found somewhere; names that begin with it come first. */
  find(query: string): number[] {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const texts = (this.texts ??= this.index());
    const found: number[] = [];
    for (let i = 0; i < texts.length; i++) {
      const text = texts[i]!;
      if (words.every((word) => text.includes(word))) found.push(i);
    }
    const first = words[0]!;
    const rank = (id: number): number => {
      const node = this.program.nodes[id]!;
      const name = node.name.toLowerCase();
      return name === first ? 0 : name.startsWith(first) ? 1 : node.short.toLowerCase().startsWith(first) ? 2 : 3;
    };
    return found.map((id) => [rank(id), id] as const).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, id]) => id);
  }

  private index(): string[] {
    const { modules, nodes } = this.program;
    const places = new Map<number, string>();
    const place = (stack: number): string => {
      let found = places.get(stack);
      if (found === undefined) {
        const frame = this.page.frames(stack).at(-1);
        found = frame ? `${frame.file}:${frame.line} ${frame.func} ${frame.code}` : "";
        places.set(stack, found);
      }
      return found;
    };
    return nodes.map((n) =>
      [n.name, n.target, n.type, n.note, modules[n.module]?.path ?? "", modules[n.module]?.kind ?? "", n.kind, place(n.stack)].join("\n").toLowerCase(),
    );
  }
}
