// The page: panes with drawings, and the panels around them, which speak of the pane that is active.

import "./style.css";
import { choicesFor, type ColourBy, coloursBy } from "./colours";
import { counterparts, type Page, type Program, readPage, showRange } from "./data";
import { histogram, type Jumps, showDetails } from "./details";
import { button, h, save, showCutTexts } from "./dom";
import { showHelp } from "./help";
import type { Point, Wire } from "./layout";
import { MemoryChart } from "./memory";
import { Outline } from "./outline";
import { Search } from "./search";
import { firstTheme, setTheme } from "./theme";
import type { Item } from "./tree";
import { View } from "./view";

interface Pane {
  view: View;
  element: HTMLElement;
  stages: HTMLSelectElement | null;
}

class App {
  private readonly panes: Pane[] = [];
  private active!: Pane;
  private readonly outline: Outline;
  private readonly memory: MemoryChart;
  private readonly details = h("div", { class: "details" });
  private readonly operators = h("div", { class: "operators", hidden: true });
  private readonly stage = h("main", {});
  private readonly legend = h("div", { class: "legend" });
  private readonly tip = h("div", { class: "tip-box", hidden: true });
  private readonly query = h("input", { type: "search", placeholder: "Search names, operators, shapes, lines", "aria-label": "Search", spellcheck: "false", autocomplete: "off" }) as HTMLInputElement;
  private readonly results = h("div", { class: "results", hidden: true });
  private readonly colour = h("select", { title: "What the colours say", "aria-label": "Colours" }) as HTMLSelectElement;
  private readonly tabs: Record<string, HTMLElement> = {};
  private searches = new Map<Program, Search>();
  private matches: number[] = [];
  private match = -1;
  private colourBy: ColourBy | null = null;
  private method: string;

  constructor(private readonly page: Page, private readonly root: HTMLElement) {
    this.method = page.methods[0] ?? "";
    this.outline = new Outline((item) => this.view.focusItem(item));
    this.memory = new MemoryChart((node) => this.jumps.toNode(this.view.program, node), () => this.toggleMemory());
    document.title = `${page.title} · lostwax`;
    this.build();
    const programs = this.programs();
    const last = programs.at(-1);
    if (!last) throw new Error("there is no program");
    this.addPane(programs.length > 1 && page.stages.at(-1) === "executable" ? last : programs[0]!);
    document.addEventListener("keydown", (e) => this.key(e));
    document.addEventListener("pointerdown", (e) => {
      if (!this.query.parentElement!.contains(e.target as Element)) this.results.hidden = true;
    });
    window.addEventListener("hashchange", () => this.followAddress());
    showCutTexts(root);
    this.refresh();
    if (page.diff) this.toggleCompare();
    this.followAddress();
  }

  get view(): View {
    return this.active.view;
  }

  private programs(): Program[] {
    return this.page.programs.filter((p) => p.method === this.method);
  }

  // ---- the parts of the page

  private build(): void {
    const { page } = this;
    const tab = (name: string, label: string): HTMLElement => (this.tabs[name] = h("button", { type: "button", class: "tab", role: "tab", click: () => this.showTab(name) }, label));
    const methods = h("select", { title: "Method", "aria-label": "Method", change: () => this.setMethod((methods as HTMLSelectElement).value) }, ...page.methods.map((m) => h("option", { value: m }, m)));
    this.query.addEventListener("input", () => this.search());
    this.query.addEventListener("keydown", (e) => {
      if (e.key === "Enter") {
        this.nextMatch(e.shiftKey ? -1 : 1);
        e.preventDefault();
      } else if (e.key === "Escape") this.clearSearch();
      else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        this.nextMatch(e.key === "ArrowDown" ? 1 : -1, true);
        e.preventDefault();
      }
      e.stopPropagation();
    });
    this.query.addEventListener("focus", () => this.matches.length && (this.results.hidden = false));
    this.colour.addEventListener("change", () => this.setColours(this.colour.value as ColourBy));
    const stages = this.programs().length > 1;
    this.root.append(
      h(
        "header",
        { class: "bar" },
        button("", "Modules and operators ([)", () => this.togglePanel("left"), "left"),
        h("span", { class: "mark", title: "lostwax explorer" }, h("i", {}), h("span", {}, "lostwax")),
        h("h1", { title: page.title }, page.title),
        page.methods.length > 1 && methods,
        h("div", { class: "search" }, this.query, h("kbd", {}, "/"), this.results),
        h(
          "nav",
          {},
          stages && button("Compare", "Compare stages side by side (c)", () => this.toggleCompare(), "compare"),
          button("Memory", "Memory over the program's life (m)", () => this.toggleMemory(), "memory-button"),
          button("All nodes", "Show weights and items of tuples, too (a)", () => this.toggleAll(), "all"),
          button("◐", "Light or dark (t)", () => this.toggleTheme(), "theme"),
          button("?", "Help (?)", () => showHelp(this.root), "help"),
          button("", "What is known of the selection (])", () => this.togglePanel("right"), "right"),
        ),
      ),
      h(
        "div",
        { class: "body" },
        h("aside", { class: "left", id: "left" }, h("div", { class: "tabs", role: "tablist" }, tab("modules", "Modules"), tab("operators", "Operators")), this.outline.element, this.operators),
        h(
          "div",
          { class: "middle" },
          this.stage,
          h(
            "div",
            { class: "tools" },
            h("div", { class: "group" }, button("−", "Zoom out (-)", () => this.view.zoom(1 / 1.3)), button("+", "Zoom in (+)", () => this.view.zoom(1.3)), button("Fit", "All of it (f)", () => this.view.fitAll())),
            h("div", { class: "group" }, button("Fold", "Fold everything (0)", () => this.foldAll()), button("Unfold", "Unfold one level more (u)", () => this.unfoldLevel(), "unfold")),
            h("div", { class: "group" }, button("SVG", "Save the drawing as SVG", () => this.saveSvg(), "svg"), button("PNG", "Save the drawing as PNG", () => void this.savePng(), "png")),
            h("div", { class: "group" }, this.colour),
            this.legend,
          ),
          this.memory.element,
        ),
        h("aside", { class: "right", id: "right" }, this.details),
      ),
      this.tip,
    );
    this.showTab("modules");
  }

  private showTab(name: string): void {
    for (const [key, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-selected", String(key === name));
    this.outline.element.hidden = name !== "modules";
    this.operators.hidden = name !== "operators";
    if (this.active) this.refreshOperators();
  }

  private addPane(program: Program): Pane {
    const view = new View(program, {
      select: (item) => this.selected(pane, item),
      hover: (item, wire, at) => this.hover(pane, item, wire, at),
      activate: () => this.activate(pane),
      folded: () => pane === this.active && this.refresh(),
    });
    const programs = this.programs();
    let stages: HTMLSelectElement | null = null;
    if (programs.length > 1) {
      stages = h("select", { "aria-label": "Stage", title: "Stage", change: () => this.setStage(pane, Number(stages!.value)) }) as HTMLSelectElement;
    }
    const element = h("div", { class: "pane" }, stages && h("div", { class: "stage-choice" }, stages), view.element);
    const pane: Pane = { view, element, stages };
    this.panes.push(pane);
    element.classList.toggle("active", this.panes.length === 1);
    this.stage.append(element);
    this.active = pane;
    this.fillStages(pane);
    this.setColours(null);
    return pane;
  }

  private fillStages(pane: Pane): void {
    if (!pane.stages) return;
    pane.stages.replaceChildren(...this.programs().map((p) => h("option", { value: p.index, selected: p === pane.view.program }, p.label)));
    pane.stages.value = String(pane.view.program.index);
  }

  private setMethod(method: string): void {
    this.method = method;
    const programs = this.programs();
    this.panes.forEach((pane, i) => {
      pane.view.setProgram(programs.find((p) => p.stage === pane.view.program.stage) ?? programs[Math.min(i, programs.length - 1)]!);
      this.fillStages(pane);
    });
    this.clearSearch();
    this.setColours(null);
    this.refresh();
  }

  private setStage(pane: Pane, index: number): void {
    const before = pane.view.program;
    const selected = pane.view.selected?.node;
    const program = this.page.programs[index]!;
    pane.view.setProgram(program);
    this.activate(pane);
    this.setColours(null);
    this.searchAgain();
    const same = selected ? counterparts(this.page, before, selected.id, program) : [];
    if (same.length) pane.view.focusNode(same[0]!);
    this.refresh();
  }

  private activate(pane: Pane): void {
    if (this.active === pane) return;
    this.active = pane;
    for (const each of this.panes) each.element.classList.toggle("active", each === pane);
    this.setColours(null);
    this.refresh();
  }

  // ---- addresses: #node=add_1, with the method and the stage where there are several

  private address(item: Item): string {
    const { program } = this.view;
    const parts = new URLSearchParams();
    if (this.page.methods.length > 1) parts.set("method", program.method);
    if (this.programs().length > 1) parts.set("stage", String(program.stage));
    if (item.role === "node" && item.node) parts.set("node", item.node.name);
    else parts.set("module", item.path);
    return `#${parts}`;
  }

  private noteAddress(item: Item | null): void {
    if (location.protocol === "about:") return; // the frame of a notebook
    history.replaceState(null, "", item ? this.address(item) : location.pathname + location.search);
  }

  private followAddress(): void {
    const parts = new URLSearchParams(location.hash.slice(1));
    const method = parts.get("method"), stage = Number(parts.get("stage") ?? 0);
    const name = parts.get("node"), path = parts.get("module");
    if (name === null && path === null) return;
    if (method && method !== this.method && this.page.methods.includes(method)) this.setMethod(method);
    const program = this.programs().find((p) => p.stage === stage) ?? this.view.program;
    const node = program.nodes.find((n) => n.name === name);
    if (node) return this.jumps.toNode(program, node.id);
    if (program !== this.view.program) this.show(program);
    const item = path && this.view.tree.items.find((i) => i.role !== "node" && i.path === path);
    if (item) this.view.focusItem(item);
  }

  // ---- what the panels show

  readonly jumps: Jumps = {
    toNode: (program, node) => {
      this.show(program);
      if (this.view.focusNode(node)) return;
      // A weight, or another node that is not drawn by itself.
      this.view.setShowAll(true);
      this.view.focusNode(node);
    },
    toItem: (item) => this.view.focusItem(item),
    address: (item) => this.address(item),
    findOperator: (target) => {
      this.query.value = target;
      this.search();
      this.results.hidden = true;
    },
  };

  /** Shows a program in the pane that has it, or in the active one. */
  private show(program: Program): void {
    const pane = this.panes.find((p) => p.view.program === program);
    if (pane) return this.activate(pane);
    this.view.setProgram(program);
    this.fillStages(this.active);
    this.setColours(null);
  }

  private refresh(): void {
    this.outline.update(this.view);
    this.details.replaceChildren(...showDetails(this.page, this.view, this.view.selected, this.jumps));
    this.details.scrollTop = 0;
    if (!this.memory.element.hidden) this.memory.show(this.view.program);
    this.refreshOperators();
  }

  private refreshOperators(): void {
    if (this.operators.hidden) return;
    this.operators.replaceChildren(histogram(this.view.program.nodes, this.jumps, 300));
  }

  private selected(pane: Pane, item: Item | null): void {
    this.activate(pane);
    this.noteAddress(item);
    for (const other of this.panes) {
      if (other === pane) continue;
      const nodes = item?.role === "node" && item.node ? counterparts(this.page, pane.view.program, item.node.id, other.view.program) : [];
      other.view.select(null, false);
      other.view.mark(nodes);
      if (nodes.length) {
        other.view.focusNode(nodes[0]!, false);
        other.view.select(null, false);
      }
    }
    this.refresh();
  }

  private hover(pane: Pane, item: Item | null, wire: Wire | null, at: Point): void {
    const parts = wire ? this.describeWire(pane.view.program, wire) : item && pane.view.hidesText(item) ? [item.label, item.node?.type ?? item.sub].filter(Boolean) : [];
    this.tip.hidden = parts.length === 0;
    if (!parts.length) return;
    this.tip.replaceChildren(...parts.map((text, i) => h("div", { class: i ? "muted" : "" }, text)));
    this.tip.style.left = `${Math.min(at.x + 14, innerWidth - 320)}px`;
    this.tip.style.top = `${Math.min(at.y + 14, innerHeight - 90)}px`;
  }

  private describeWire(program: Program, wire: Wire): string[] {
    const values = [...wire.values].map((v) => program.nodes[v]!);
    const lines = values.slice(0, 6).map((n) => `${n.name}: ${n.type || "a value"}`);
    if (values.length > 6) lines.push(`and ${values.length - 6} more`);
    const words = new Set(values.flatMap((n) => n.type.match(/[A-Za-z_]\w*/g) ?? []));
    for (const s of program.symbols) if (words.has(s.name)) lines.push(`${s.name}: ${showRange(s)}${s.declared ? ` (${s.declared})` : ""}`);
    return lines;
  }

  // ---- colours

  private setColours(by: ColourBy | null): void {
    const { program } = this.view;
    const choices = choicesFor(program);
    if (by) this.colourBy = by;
    const chosen = this.colourBy && choices.includes(this.colourBy) ? this.colourBy : choices[0]!;
    this.colour.replaceChildren(...choices.map((c) => h("option", { value: c, selected: c === chosen }, `Colour: ${c}`)));
    for (const pane of this.panes) {
      const its = choicesFor(pane.view.program);
      const colours = coloursBy(this.colourBy && its.includes(this.colourBy) ? this.colourBy : its[0]!, pane.view.program);
      pane.view.colour = colours.of;
      pane.view.parts = colours.parts ?? null;
      pane.view.redraw();
    }
    const { legend } = coloursBy(chosen, program);
    this.legend.replaceChildren(...legend.slice(0, 12).map(([name, hue]) => h("span", {}, h("i", { class: "dot", style: `background:${hue}` }), name)));
  }

  // ---- search

  private search(): void {
    const { program } = this.view;
    let search = this.searches.get(program);
    if (!search) this.searches.set(program, (search = new Search(this.page, program)));
    this.matches = search.find(this.query.value);
    this.match = -1;
    this.view.mark(this.matches);
    this.showResults();
  }

  private searchAgain(): void {
    if (this.query.value) this.search();
    this.results.hidden = true;
  }

  private showResults(): void {
    const { program } = this.view;
    const has = this.query.value.trim() !== "";
    this.results.hidden = !has;
    const rows = this.matches.slice(0, 60).map((id, i) => {
      const node = program.nodes[id]!;
      const path = program.modules[node.module]?.path ?? "";
      return h(
        "button",
        { type: "button", class: i === this.match ? "result here" : "result", "data-node": node.name, click: () => this.goTo(i) },
        h("b", {}, node.name),
        h("span", { class: "muted" }, [node.short !== node.name ? node.short : "", path].filter(Boolean).join(" · ")),
        h("span", { class: "type" }, node.type),
      );
    });
    const count = this.matches.length;
    this.results.replaceChildren(h("div", { class: "muted head", "data-name": "count" }, count ? `${count.toLocaleString("en")} node${count > 1 ? "s" : ""}` : "nothing found"), ...rows);
  }

  private nextMatch(step: number, keepOpen = false): void {
    if (!this.matches.length) return;
    const from = this.match < 0 && step < 0 ? 0 : this.match;
    this.goTo((from + step + this.matches.length) % this.matches.length, keepOpen);
  }

  private goTo(index: number, keepOpen = false): void {
    this.match = index;
    const { matches } = this;
    this.jumps.toNode(this.view.program, matches[index]!);
    this.view.mark(matches);
    this.showResults();
    this.results.hidden = !keepOpen;
  }

  private clearSearch(): void {
    this.query.value = "";
    this.matches = [];
    this.results.hidden = true;
    this.query.blur();
    for (const pane of this.panes) pane.view.mark([]);
  }

  // ---- commands

  private foldAll(): void {
    this.view.foldAll();
    this.view.select(null);
  }

  private unfoldLevel(): void {
    this.view.unfoldLevel();
    this.refresh();
  }

  private toggleMemory(): void {
    const { element } = this.memory;
    element.hidden = !element.hidden;
    if (!element.hidden) this.memory.show(this.view.program);
  }

  /** Shows or hides a panel; where there is little room, one at a time. */
  private togglePanel(side: "left" | "right"): void {
    const { classList } = this.root;
    const isNarrow = matchMedia("(max-width: 900px)").matches;
    classList.toggle(isNarrow ? `show-${side}` : `hide-${side}`);
    if (isNarrow) classList.remove(side === "left" ? "show-right" : "show-left");
  }

  private saveSvg(): void {
    save(new Blob([this.view.toSvg()], { type: "image/svg+xml" }), `${this.page.title}.svg`);
  }

  private async savePng(): Promise<void> {
    const picture = await this.view.toPng();
    if (picture) save(picture, `${this.page.title}.png`);
  }

  private toggleAll(): void {
    this.view.setShowAll(!this.view.showsAll);
    this.refresh();
  }

  private toggleTheme(): void {
    setTheme(document.documentElement.dataset["theme"] === "dark" ? "light" : "dark");
    for (const pane of this.panes) pane.view.refreshPalette();
    this.memory.draw();
  }

  toggleCompare(): void {
    if (this.panes.length > 1) {
      const [, second] = this.panes.splice(0, 2, this.panes[0]!);
      second!.element.remove();
      this.active = this.panes[0]!;
    } else {
      const programs = this.programs();
      const here = programs.indexOf(this.view.program);
      const other = programs[here + 1] ?? programs[here - 1];
      if (!other) return;
      const first = this.active;
      this.addPane(other);
      this.activate(first);
    }
    this.stage.classList.toggle("two", this.panes.length > 1);
    this.refresh();
    const settle = (): void => {
      for (const pane of this.panes) pane.view.fit(false);
      if (this.view.selected) this.view.focusItem(this.view.selected);
    };
    // The canvas of a new pane has its size only after the next frame.
    requestAnimationFrame(() => requestAnimationFrame(settle));
  }

  private key(e: KeyboardEvent): void {
    const target = e.target as HTMLElement;
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    const { view } = this;
    const commands: Record<string, () => void> = {
      "/": () => this.query.focus(),
      f: () => view.fitAll(),
      "[": () => this.togglePanel("left"),
      "]": () => this.togglePanel("right"),
      "+": () => view.zoom(1.3),
      "=": () => view.zoom(1.3),
      "-": () => view.zoom(1 / 1.3),
      "0": () => this.foldAll(),
      u: () => this.unfoldLevel(),
      m: () => this.toggleMemory(),
      a: () => this.toggleAll(),
      c: () => this.toggleCompare(),
      t: () => this.toggleTheme(),
      "?": () => showHelp(this.root),
      n: () => this.nextMatch(1),
      N: () => this.nextMatch(-1),
      Escape: () => (this.query.value ? this.clearSearch() : view.select(null)),
      Enter: () => view.selected && this.toggle(view.selected),
      " ": () => view.selected && this.toggle(view.selected),
      ArrowDown: () => this.walk("down"),
      ArrowUp: () => this.walk("up"),
      ArrowLeft: () => view.selected?.parent?.parent && view.focusItem(view.selected.parent),
      ArrowRight: () => view.selected?.isOpen && view.selected.children[0] && view.focusItem(view.selected.children[0]),
    };
    if (target.tagName === "BUTTON" && (e.key === "Enter" || e.key === " ")) return;
    const command = commands[e.key];
    if (!command) return;
    e.preventDefault();
    command();
  }

  private toggle(item: Item): void {
    this.view.toggle(item);
  }

  /** Along the edges: to what reads the selected item, or to what it reads. */
  private walk(way: "up" | "down"): void {
    const { view } = this;
    const item = view.selected ?? view.tree.root.children[0];
    if (!item) return;
    if (!view.selected) return view.focusItem(item);
    const edges = [...(item.parent?.edges.values() ?? [])];
    const next = way === "down" ? edges.find((e) => e.from === item)?.to : edges.find((e) => e.to === item)?.from;
    if (next) view.focusItem(next);
  }
}

setTheme(firstTheme());
const text = document.getElementById("program")?.textContent ?? "";
const app = new App(readPage(text), document.getElementById("app")!);
/** For tests and for the console: the view that is active. */
Object.defineProperty(window, "lostwax", { value: app });
document.documentElement.dataset["ready"] = String(Math.round(performance.now()));
