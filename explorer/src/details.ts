// The panel at the right: what is known of the node or group that is selected, or of the program.

import { CHANGED, counterparts, type Frame, type Node, ONLY_HERE, type Page, type Program, showBytes, showRange, showSeconds } from "./data";
import { h, section } from "./dom";
import { countOperators } from "./operators";
import { categoryOf, wheel } from "./theme";
import { isState, type Item, nodesIn } from "./tree";
import type { View } from "./view";

export interface Jumps {
  toNode(program: Program, node: number): void;
  toItem(item: Item): void;
  findOperator(target: string): void;
  /** The address of an item: what comes after the # of this page. */
  address(item: Item): string;
}

export function showDetails(page: Page, view: View, item: Item | null, jumps: Jumps): HTMLElement[] {
  if (!item) return showProgram(page, view.program, jumps);
  const found = item.role === "node" && item.node ? showNode(page, view, item.node, jumps) : showGroup(page, view, item, jumps);
  // The frame of a notebook has no address of its own.
  if (location.protocol !== "about:") found[0]!.firstElementChild!.append(h("a", { class: "here-link", href: jumps.address(item), title: "A link to this: copy its address" }, "# link"));
  return found;
}

function link(text: string, title: string, click: () => void, className = "link"): HTMLElement {
  return h("button", { class: className, type: "button", title, click }, text);
}

function table(rows: [string, HTMLElement | string][]): HTMLElement {
  return h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// ---- nodes

function showNode(page: Page, view: View, node: Node, jumps: Jumps): HTMLElement[] {
  const { program } = view;
  const found: HTMLElement[] = [
    h(
      "header",
      {},
      h("div", { class: "kicker" }, h("i", { class: "dot", style: `background:${categoryOf(node).hue}` }), categoryOf(node).name),
      h("h2", { "data-name": "title" }, node.kind === "operator" || node.kind === "size" ? node.short : node.name),
      h("code", { class: "path" }, node.kind === "operator" || node.kind === "size" ? `${node.name} = ${node.target}` : node.target),
    ),
  ];
  const facts: [string, HTMLElement | string][] = [];
  if (node.type) facts.push(["type", h("code", { "data-name": "type" }, node.type)]);
  if (node.bytes > 0) facts.push(["size", showBytes(node.bytes)]);
  facts.push(...showProfile(program, [node]));
  const modules = modulePath(program, node.module);
  if (modules) facts.push(["module", h("code", {}, modules)]);
  if (isState(node) && node.note) facts.push([node.kind, h("code", {}, node.note)]);
  if (facts.length) found.push(table(facts));
  const used = symbolsIn(program, node.type);
  if (used.length) found.push(section("Sizes that vary", symbolTable(used)));
  if (!isState(node) && node.note) found.push(section("Not delegated", h("p", { class: "warn" }, node.note)));
  found.push(...showChange(page, program, node));
  const frames = page.frames(node.stack);
  if (frames.length) found.push(showSource(frames));
  if (node.call) found.push(section("Call", h("pre", { class: "call" }, node.call)));
  found.push(...showOrigin(page, program, node, jumps));
  if (program.kernels && node.kind === "operator" && program.graphs[node.graph]!.kind !== "delegate") {
    const kernels = program.kernels[node.id] ?? [];
    found.push(section("Kernels", kernels.length ? h("ol", { class: "origin", "data-name": "kernels" }, ...kernels.map((k) => h("li", {}, h("code", {}, k)))) : h("p", { class: "muted" }, "none: a view of its input, or never read")));
  }
  found.push(...showValues("Inputs", node.inputs.map((i) => program.nodes[i]!), program, jumps));
  found.push(...showValues("Read by", node.users.map((i) => program.nodes[i]!), program, jumps));
  return found;
}

function showValues(title: string, nodes: Node[], program: Program, jumps: Jumps): HTMLElement[] {
  if (!nodes.length) return [];
  const rows = nodes.slice(0, 60).map((node) =>
    h(
      "li",
      {},
      h("i", { class: "dot", style: `background:${categoryOf(node).hue}` }),
      link(isState(node) && node.note ? node.note : node.name, node.target, () => jumps.toNode(program, node.id)),
      h("span", { class: "type" }, node.type),
    ),
  );
  const more = nodes.length > 60 ? h("li", { class: "muted" }, `and ${nodes.length - 60} more`) : null;
  return [section(title, h("ul", { class: "values" }, ...rows, more))];
}

export function showSource(frames: Frame[]): HTMLElement {
  const inner = frames.at(-1)!;
  const lines = inner.around.length ? inner.around : ([[inner.line, inner.code]] as [number, string][]);
  const indent = Math.min(...lines.filter(([, text]) => text.trim()).map(([, text]) => text.search(/\S/)));
  const code = h(
    "pre",
    { class: "source", "data-name": "source" },
    ...lines.map(([number, text]) =>
      h("div", { class: number === inner.line ? "line here" : "line" }, h("b", {}, String(number)), h("span", {}, text.slice(Math.max(indent, 0)) || " ")),
    ),
  );
  const outer = frames.slice(0, -1).reverse();
  return section(
    "Source",
    h("div", { class: "place", "data-name": "place" }, `${inner.file}:${inner.line}`, h("span", { class: "muted" }, ` in ${inner.func}`)),
    code,
    outer.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, `called from ${outer.length} more line${outer.length > 1 ? "s" : ""}`),
        h("ol", { class: "frames" }, ...outer.map((f) => h("li", {}, h("div", {}, `${f.file}:${f.line} in ${f.func}`), h("code", {}, f.code)))),
      ),
  );
}

/** Where a node comes from, and what became of it in other stages. */
function showOrigin(page: Page, program: Program, node: Node, jumps: Jumps): HTMLElement[] {
  const rows: HTMLElement[] = [];
  const others = page.programs.filter((p) => p.method === program.method);
  const told = node.origin >= 0 ? program.origins[node.origin]! : [];
  if (others.length > 1) {
    for (const other of others) {
      const nodes = other === program ? [node.id] : counterparts(page, program, node.id, other);
      const names = nodes.slice(0, 24).map((id) => {
        const each = other.nodes[id]!;
        const text = each.kind === "operator" ? `${each.short}` : each.name;
        return link(text, `${each.name} = ${each.target}`, () => jumps.toNode(other, id), other === program ? "link here" : "link");
      });
      if (nodes.length > 24) names.push(h("span", { class: "muted" }, `+${nodes.length - 24}`));
      rows.push(
        h("li", {}, h("span", { class: "stage" }, other.label), h("span", { class: "chain" }, ...(names.length ? names : [h("span", { class: "muted" }, "—")]))),
      );
    }
    if (rows.length) return [section("Through the stages", h("ul", { class: "stages", "data-name": "origin" }, ...rows))];
  }
  if (!told.length) return [];
  const chain = [...told.map((o) => `${o.name} = ${o.target}`), `${node.name} = ${node.target}`];
  return [section("Decomposed from", h("ol", { class: "origin", "data-name": "origin" }, ...chain.map((text) => h("li", {}, h("code", {}, text)))))];
}

function modulePath(program: Program, id: number): string {
  const module = program.modules[id];
  return module && id > 0 ? `${module.path} · ${module.kind.split(".").at(-1)}` : "";
}

// ---- groups and programs

function showGroup(page: Page, view: View, item: Item, jumps: Jumps): HTMLElement[] {
  const { program } = view;
  const nodes = nodesIn(item);
  const graph = item.node ? program.graphs.find((g) => g.owner === item.node!.id) : undefined;
  const kicker = item.backend && item.role === "call" ? "delegate" : { call: "control flow", body: "body", module: "module", list: "list of modules", chunk: "part", root: "", node: "" }[item.role];
  const found = [
    h("header", {}, h("div", { class: "kicker" }, kicker), h("h2", { "data-name": "title" }, item.label), h("code", { class: "path" }, [item.path, item.sub].filter(Boolean).join(" · "))),
    h("button", { class: "wide", type: "button", click: () => view.toggle(item) }, item.isOpen ? "Fold" : "Unfold"),
  ];
  const state = stateOf(program, nodes);
  const facts: [string, HTMLElement | string][] = [["operators", String(item.count)]];
  if (state.count) facts.push(["weights", `${state.count} · ${showBytes(state.bytes)}`]);
  if (graph?.backend) facts.push(["payload", showBytes(graph.bytes ?? 0)]);
  if (item.node?.type) facts.push(["type", h("code", {}, item.node.type)]);
  facts.push(...showProfile(program, nodes));
  found.push(table(facts));
  if (item.node) {
    const frames = page.frames(item.node.stack);
    if (frames.length) found.push(showSource(frames));
    found.push(...showValues("Inputs", item.node.inputs.map((i) => program.nodes[i]!), program, jumps));
  }
  found.push(section("Operators", histogram(nodes, jumps)));
  return found;
}

function stateOf(program: Program, nodes: Node[]): { count: number; bytes: number } {
  const seen = new Set<number>();
  for (const node of nodes) for (const i of node.inputs) if (isState(program.nodes[i]!)) seen.add(i);
  return { count: seen.size, bytes: [...seen].reduce((sum, i) => sum + Math.max(program.nodes[i]!.bytes, 0), 0) };
}

export function histogram(nodes: Node[], jumps: Jumps, most = 40): HTMLElement {
  const counts = countOperators(nodes);
  const top = counts[0]?.count ?? 1;
  return h(
    "ul",
    { class: "bars" },
    ...counts.slice(0, most).map((each) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", title: `${each.target}: mark all`, click: () => jumps.findOperator(each.target) },
          h("i", { class: "bar", style: `width:${(100 * each.count) / top}%;background:${each.hue}` }),
          h("span", { class: "name" }, each.name),
          h("span", { class: "count" }, String(each.count)),
        ),
      ),
    ),
    counts.length > most && h("li", { class: "muted" }, `and ${counts.length - most} more`),
  );
}

function showProgram(page: Page, program: Program, jumps: Jumps): HTMLElement[] {
  const { nodes, memory } = program;
  // As `lostwax show --ops` counts: jumps of an executable are no calls.
  const called = program.label === "executable" ? nodes.filter((n) => n.kind !== "control") : nodes;
  const calls = countOperators(called).reduce((sum, each) => sum + each.count, 0);
  const facts: [string, HTMLElement | string][] = [["operators", calls.toLocaleString("en")]];
  const weights = nodes.filter(isState);
  if (weights.length) facts.push(["weights", `${weights.length} · ${showBytes(memory.weights)}`]);
  if (memory.arena) facts.push(["memory", showBytes(memory.arena)]);
  facts.push(...showProfile(program, nodes));
  const found = [
    h("header", {}, h("div", { class: "kicker" }, program.label), h("h2", { "data-name": "title" }, page.title), h("code", { class: "path" }, program.modules[0]?.kind || program.method)),
    table(facts),
  ];
  found.push(...showDifferences(page, program, jumps));
  if (program.symbols.length) found.push(section("Sizes that vary", symbolTable(program.symbols)));
  found.push(...showSlowest(program, jumps));
  found.push(...showDelegation(program, jumps));
  const inputs = nodes.filter((n) => n.kind === "input" && n.graph === 0);
  found.push(...showValues("Inputs", inputs, program, jumps));
  const output = nodes.find((n) => n.kind === "output" && n.graph === 0);
  if (output) found.push(...showValues("Outputs", output.inputs.map((i) => nodes[i]!), program, jumps));
  return found;
}

function showDelegation(program: Program, jumps: Jumps): HTMLElement[] {
  const delegates = program.graphs.map((graph, index) => ({ graph, index })).filter((d) => d.graph.kind === "delegate");
  if (!delegates.length) return [];
  const isDelegate = new Set(delegates.map((d) => d.index));
  const operators = program.nodes.filter((n) => n.kind === "operator");
  const taken = operators.filter((n) => isDelegate.has(n.graph));
  const left = operators.filter((n) => !isDelegate.has(n.graph));
  const reasons = new Map<string, Node[]>();
  for (const node of left) reasons.set(node.note || "no backend was asked", [...(reasons.get(node.note || "no backend was asked") ?? []), node]);
  const share = Math.round((100 * taken.length) / Math.max(operators.length, 1));
  return [
    section(
      "Delegation",
      h("div", { class: "meter", title: `${share}%` }, h("i", { style: `width:${share}%;background:${wheel(0)}` })),
      h("p", { class: "muted" }, `${taken.length} of ${operators.length} operators in ${delegates.length} delegate${delegates.length > 1 ? "s" : ""}`),
      h(
        "ul",
        { class: "values" },
        ...delegates.slice(0, 40).map(({ graph }) =>
          h("li", {}, h("i", { class: "dot", style: `background:${wheel(0)}` }), link(graph.name, graph.backend ?? "", () => jumps.toNode(program, graph.owner)), h("span", { class: "type" }, `${graph.backend}, ${showBytes(graph.bytes ?? 0)}`)),
        ),
      ),
    ),
    ...(left.length
      ? [
          section(
            "Not delegated",
            h(
              "ul",
              { class: "reasons" },
              ...[...reasons].map(([reason, nodes]) =>
                h("li", {}, h("p", { class: "warn" }, reason), h("span", { class: "chain" }, ...nodes.slice(0, 12).map((n) => link(n.short, n.name, () => jumps.toNode(program, n.id))), nodes.length > 12 && h("span", { class: "muted" }, `+${nodes.length - 12}`))),
              ),
            ),
          ),
        ]
      : []),
  ];
}

// ---- differences and profiles

/** What a node is in the other program, if it is another there. */
function showChange(page: Page, program: Program, node: Node): HTMLElement[] {
  const change = program.changes?.[node.id];
  if (!change) return [];
  if (change === ONLY_HERE) return [section("Differs", h("p", { class: "warn", "data-name": "change" }, `only in ${program.label}`))];
  const other = page.programs.find((p) => p.method === program.method && p !== program)!;
  const [id] = counterparts(page, program, node.id, other);
  const there = id === undefined ? null : other.nodes[id]!;
  const lines = there ? [there.type !== node.type && there.type, there.call !== node.call && there.call].filter(Boolean) : [];
  return [section("Differs", h("p", { class: "warn", "data-name": "change" }, lines.length ? `in ${other.label}` : "it reads other values"), ...lines.map((text) => h("pre", { class: "call" }, text || "")))];
}

function showDifferences(page: Page, program: Program, jumps: Jumps): HTMLElement[] {
  if (!program.changes) return [];
  const pairs = page.programs.filter((p) => p.method === program.method);
  const rows = pairs.flatMap((p) => {
    const nodes = p.nodes.filter((n) => p.changes?.[n.id] === ONLY_HERE || (p === program && p.changes?.[n.id] === CHANGED));
    return nodes.map((node) => ({ p, node, told: p.changes![node.id] === CHANGED ? "changed" : `only in ${p.label}` }));
  });
  const list = rows.slice(0, 60).map(({ p, node, told }) => h("li", {}, link(node.name, node.target, () => jumps.toNode(p, node.id)), h("span", { class: "type" }, told)));
  return [
    section(
      "Differences",
      h("p", { class: "muted", "data-name": "differences" }, rows.length ? `${rows.length} node${rows.length > 1 ? "s" : ""}` : "none: both compute the same"),
      h("ul", { class: "values" }, ...list, rows.length > 60 && h("li", { class: "muted" }, `and ${rows.length - 60} more`)),
      h("p", { class: "muted" }, "Weights are compared by their types, not by their values."),
    ),
  ];
}

function showProfile(program: Program, nodes: Node[]): [string, string][] {
  const { seconds = {}, errors = {} } = program.profile ?? {};
  const found: [string, string][] = [];
  const time = nodes.reduce((sum, n) => sum + (seconds[n.id] ?? 0), 0);
  const total = Object.values(seconds).reduce((a, b) => a + b, 0);
  if (time) found.push(["time", time < total ? `${showSeconds(time)} · ${((100 * time) / total).toFixed(1)}%` : showSeconds(time)]);
  const known = nodes.map((n) => errors[n.id]).filter((e) => e !== undefined);
  if (known.length) found.push(["error", known.reduce((a, b) => Math.max(a, b), 0).toExponential(1)]);
  return found;
}

function showSlowest(program: Program, jumps: Jumps): HTMLElement[] {
  const all = Object.entries(program.profile?.seconds ?? {}).sort((a, b) => b[1] - a[1]);
  const rows = all.slice(0, 10).map(([id, time]) => {
    const node = program.nodes[Number(id)]!;
    return h("li", {}, h("i", { class: "dot", style: `background:${categoryOf(node).hue}` }), link(node.name, node.target, () => jumps.toNode(program, node.id)), h("span", { class: "type" }, showSeconds(time)));
  });
  return rows.length ? [section("Slowest", h("ul", { class: "values", "data-name": "slowest" }, ...rows))] : [];
}

// ---- symbols

function symbolsIn(program: Program, type: string): Program["symbols"] {
  const words = new Set(type.match(/[A-Za-z_]\w*/g) ?? []);
  return program.symbols.filter((s) => words.has(s.name));
}

function symbolTable(symbols: Program["symbols"]): HTMLElement {
  return h(
    "table",
    { class: "symbols", "data-name": "symbols" },
    ...symbols.map((s) =>
      h(
        "tr",
        {},
        h("td", {}, h("code", {}, s.name)),
        h("td", {}, showRange(s)),
        h("td", { class: "muted" }, [s.declared, s.place && s.place !== s.name ? s.place : "", s.example != null ? `example ${s.example}` : ""].filter(Boolean).join(" · ")),
      ),
    ),
  );
}
