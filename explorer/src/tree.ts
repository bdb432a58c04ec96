// A program as a tree: modules, control flow and delegates are groups, which can be folded. For each
// group the edges between its children are known, and which of them have edges to the outside.

import type { Node, Program } from "./data";

export type Role = "root" | "module" | "list" | "chunk" | "call" | "body" | "node";

export interface Item {
  id: number;
  role: Role;
  /** The node of a leaf, or of a call that has graphs inside; else null. */
  node: Node | null;
  label: string;
  sub: string;
  path: string;
  parent: Item | null;
  children: Item[];
  depth: number;
  /** The number of operators inside. */
  count: number;
  /** The number of the first node inside: the order of the program. */
  order: number;
  backend: string;
  isOpen: boolean;
  edges: Map<number, Edge>;
  ins: Map<Item, Set<number>>;
  outs: Map<Item, Set<number>>;
}

export interface Edge {
  from: Item;
  to: Item;
  /** The nodes whose values go along it. */
  values: Set<number>;
}

const MOST_CHILDREN = 100;
const CHUNK = 50;
const FEWEST_OF_LIST = 5;
const MOST_FRAGMENTS = 200;
const UNREAD = 1e9;

export class Tree {
  readonly root: Item;
  readonly items: Item[] = [];
  /** The item of each node; null if it is not drawn by itself. */
  readonly leaf: (Item | null)[];
  private readonly module = new Map<Item, number>();
  private readonly quiet: Set<number>;

  constructor(readonly program: Program, showAll: boolean) {
    this.leaf = new Array(program.nodes.length).fill(null);
    this.quiet = showAll ? new Set() : findQuiet(program.nodes);
    this.root = this.make("root", null, null, program.modules[0]?.kind.split(".").at(-1) || program.label);
    this.root.isOpen = true;
    this.build();
    this.mergeFragments(this.root);
    this.settle(this.root);
    this.setDepth(this.root, 0);
    this.connect();
  }

  private make(role: Role, parent: Item | null, node: Node | null, label: string, sub = "", path = ""): Item {
    const item: Item = {
      id: this.items.length, role, node, label, sub, path, parent,
      children: [], depth: 0, count: 0, order: Infinity, backend: "", isOpen: false,
      edges: new Map(), ins: new Map(), outs: new Map(),
    };
    this.items.push(item);
    parent?.children.push(item);
    return item;
  }

  /** Items for all nodes, below the modules that they stand in. */
  private build(): void {
    const { nodes, graphs, modules } = this.program;
    const tops: Item[] = [];
    const module = this.module;
    const byGraph: Node[][] = graphs.map(() => []);
    for (const node of nodes) byGraph[node.graph]!.push(node);
    const homes = new Map<number, number>();
    graphs.forEach((graph, g) => {
      if (graph.kind === "delegate") homes.set(graph.owner, commonModule(modules, byGraph[g]!));
    });
    graphs.forEach((graph, g) => {
      let around = new Set<number>();
      if (graph.owner < 0) tops[g] = this.root;
      else {
        const owner = nodes[graph.owner]!;
        const call = this.leaf[graph.owner]!;
        call.role = "call";
        around = new Set(chainOf(modules, homes.get(owner.id) ?? owner.module));
        if (graph.kind === "delegate") {
          tops[g] = call;
          call.backend = graph.backend ?? "";
          call.label = graph.backend ?? graph.name;
        } else {
          tops[g] = this.make("body", call, null, graph.name.replace(/_\d+$/, "").replace(/_/g, " "), "", graph.name);
        }
      }
      const backend = graph.kind === "delegate" ? graph.backend ?? "" : tops[g]!.backend;
      // Calls of a module are told apart: a group is what is computed without a break. So no group
      // waits for its own results, and all edges lead downwards.
      const group = (id: number): Item => {
        if (id <= 0 || around.has(id)) return tops[g]!;
        const { parent, path, kind } = modules[id]!;
        const above = group(parent);
        const last = above.children.at(-1);
        if (last && module.get(last) === id) return last;
        const outer = modules[parent]?.path ?? "";
        const label = path.startsWith(`${outer}.`) ? path.slice(outer.length + 1) : path;
        const found = this.make("module", above, null, label || path, kind.split(".").at(-1) ?? "", path);
        found.backend = backend;
        module.set(found, id);
        return found;
      };
      for (const node of byGraph[g]!) {
        if (isState(node) || this.quiet.has(node.id)) continue;
        this.add(node, group(homes.get(node.id) ?? node.module), backend);
      }
      for (const node of byGraph[g]!) {
        if (!isState(node) || this.quiet.has(node.id)) continue;
        const user = node.users.map((id) => this.leaf[id]).find((item) => item);
        this.add(node, user?.parent ?? this.homeOf(node, tops[g]!), backend);
      }
    });
  }

  /** Where a weight stands that nothing reads, as the counters of norms: in its module, or the nearest
   * around it that is called. */
  private homeOf(node: Node, top: Item): Item {
    let best = top;
    if (top !== this.root) return top;
    for (const item of this.module.keys()) if (item.path.length > best.path.length && node.note.startsWith(`${item.path}.`)) best = item;
    return best;
  }

  private add(node: Node, home: Item, backend: string): void {
    const label = labelOf(node);
    const inside = isState(node) && home.path && label.startsWith(`${home.path}.`);
    const item = this.make("node", home, node, inside ? label.slice(home.path.length + 1) : label, "", node.name);
    item.backend = backend;
    this.leaf[node.id] = item;
  }

  /** Parts of one call of a module, between which others are computed, become one group again, where
   * that makes no cycle: a module that is called twice stays two. */
  private mergeFragments(item: Item): void {
    const parts = new Map<number, Item[]>();
    for (const child of item.children) {
      const id = this.module.get(child);
      if (id !== undefined) parts.set(id, [...(parts.get(id) ?? []), child]);
    }
    const several = [...parts.values()].filter((p) => p.length > 1);
    if (several.length && several.length <= MOST_FRAGMENTS) this.merge(item, several);
    for (const child of item.children) if (child.children.length) this.mergeFragments(child);
  }

  /** For each child of a group those that read what it computes. */
  private readersIn(item: Item): Map<Item, Set<Item>> {
    const home = new Map<number, Item>();
    for (const child of item.children) for (const node of nodesIn(child)) home.set(node.id, child);
    const next = new Map<Item, Set<Item>>(item.children.map((c) => [c, new Set()]));
    for (const [id, to] of home) {
      for (const input of this.program.nodes[id]!.inputs) {
        const from = home.get(this.source(input));
        if (from && from !== to) next.get(from)!.add(to);
      }
    }
    return next;
  }

  private merge(item: Item, several: Item[][]): void {
    const next = this.readersIn(item);
    const gone = new Set<Item>();
    for (const [first, ...others] of several) {
      let kept = first!;
      for (const other of others) {
        if (reaches(kept, other, next) || reaches(other, kept, next)) {
          kept = other;
          continue;
        }
        for (const child of other.children) child.parent = kept;
        kept.children.push(...other.children);
        for (const to of next.get(other)!) if (to !== kept) next.get(kept)!.add(to);
        for (const targets of next.values()) if (targets.delete(other)) targets.add(kept);
        next.get(kept)!.delete(kept);
        next.delete(other);
        gone.add(other);
      }
    }
    item.children = item.children.filter((c) => !gone.has(c));
  }

  /** Counts, order and depth; long lists of children are put into groups. */
  private settle(item: Item): void {
    item.children.forEach((c) => this.settle(c));
    item.order = item.children.reduce((least, c) => Math.min(least, c.order), orderOf(item.node));
    item.count = item.children.reduce((sum, c) => sum + c.count, isCounted(item) ? 1 : 0);
    item.children.sort((a, b) => a.order - b.order);
    this.groupLists(item);
    this.groupChunks(item);
  }

  private setDepth(item: Item, depth: number): void {
    item.depth = depth;
    for (const c of item.children) this.setDepth(c, depth + 1);
  }

  /** "layers.0", "layers.1", … become one group, "layers". */
  private groupLists(item: Item): void {
    const lists = new Map<string, Item[]>();
    for (const child of item.children) {
      const match = child.role === "module" ? /^(.*)\.\d+$/.exec(child.label) : null;
      if (match) lists.set(match[1]!, [...(lists.get(match[1]!) ?? []), child]);
    }
    for (const [name, members] of lists) {
      if (members.length < FEWEST_OF_LIST || members.length === item.children.length) continue;
      if (leavesAndReturns(new Set(members), this.readersIn(item))) continue; // no box waits for itself
      const kinds = new Set(members.map((m) => m.sub));
      const sub = `${members.length} × ${kinds.size === 1 ? members[0]!.sub : "modules"}`;
      for (const member of members) member.label = member.label.slice(name.length + 1);
      this.groupChunks(this.gather(item, members, "list", name, sub));
    }
  }

  private groupChunks(item: Item): void {
    while (item.children.length > MOST_CHILDREN) {
      const all = [...item.children];
      for (let i = 0; i < all.length; i += CHUNK) {
        const part = all.slice(i, i + CHUNK);
        const first = part[0]!, last = part.at(-1)!;
        const ends = `${first.label} … ${last.label}`;
        if (item.role === "list") this.gather(item, part, "chunk", ends, part[0]!.sub);
        else this.gather(item, part, "chunk", `part ${i / CHUNK + 1}`, ends);
      }
    }
  }

  private gather(item: Item, members: Item[], role: Role, label: string, sub: string): Item {
    const path = members[0]!.path.replace(/\.\d+$/, "");
    const group = this.make(role, null, null, label, sub, path);
    const inside = new Set(members);
    const at = item.children.indexOf(members[0]!);
    group.children = members;
    group.parent = item;
    group.order = members[0]!.order;
    group.count = members.reduce((sum, m) => sum + m.count, 0);
    const backends = new Set(members.map((m) => m.backend));
    if (backends.size === 1) group.backend = members[0]!.backend;
    members.forEach((m) => (m.parent = group));
    item.children[at] = group;
    item.children = item.children.filter((c) => c === group || !inside.has(c));
    return group;
  }

  /** The node whose box a value is drawn at: items of tuples are drawn at the tuple. */
  source(id: number): number {
    const { nodes } = this.program;
    let node = nodes[id]!;
    while (this.leaf[node.id] === null && node.kind === "item") node = nodes[node.inputs[0]!]!;
    return node.id;
  }

  private connect(): void {
    for (const node of this.program.nodes) {
      const to = this.leaf[node.id];
      if (!to) continue;
      for (const input of node.inputs) {
        const from = this.leaf[this.source(input)];
        if (from && from !== to) this.lift(from, to, input);
      }
    }
  }

  private lift(from: Item, to: Item, value: number): void {
    let a = from, b = to;
    while (a.depth > b.depth) {
      note(a.parent!.outs, a, value);
      a = a.parent!;
    }
    while (b.depth > a.depth) {
      note(b.parent!.ins, b, value);
      b = b.parent!;
    }
    while (a.parent !== b.parent) {
      note(a.parent!.outs, a, value);
      note(b.parent!.ins, b, value);
      a = a.parent!;
      b = b.parent!;
    }
    if (a === b || !a.parent) return;
    const key = a.id * 1e7 + b.id;
    const known = a.parent.edges.get(key);
    if (known) known.values.add(value);
    else a.parent.edges.set(key, { from: a, to: b, values: new Set([value]) });
  }

  /** The item that stands for a node now: its own, or the outermost folded group around it. */
  shown(id: number): Item | null {
    const leaf = this.leaf[this.source(id)];
    if (!leaf) return null;
    let found = leaf;
    for (let item = leaf.parent; item; item = item.parent) if (!item.isOpen) found = item;
    return found;
  }

  /** Unfolds what is around an item; says whether anything changed. */
  reveal(item: Item): boolean {
    let changed = false;
    for (let each = item.parent; each; each = each.parent) {
      if (!each.isOpen) changed = each.isOpen = true;
    }
    return changed;
  }
}

function note(map: Map<Item, Set<number>>, item: Item, value: number): void {
  const known = map.get(item);
  if (known) known.add(value);
  else map.set(item, new Set([value]));
}

/** Does a way lead from one to the other by way of a third? */
function reaches(from: Item, to: Item, next: Map<Item, Set<Item>>): boolean {
  const seen = new Set<Item>([from, to]);
  const todo = [...next.get(from)!].filter((i) => i !== to);
  for (let item = todo.pop(); item; item = todo.pop()) {
    if (seen.has(item)) continue;
    seen.add(item);
    for (const each of next.get(item)!) {
      if (each === to) return true;
      todo.push(each);
    }
  }
  return false;
}

/** Does a way lead out of a set and back into it? */
function leavesAndReturns(inside: Set<Item>, next: Map<Item, Set<Item>>): boolean {
  const outside = (item: Item): Item[] => [...next.get(item)!].filter((each) => !inside.has(each));
  const todo = [...inside].flatMap(outside), seen = new Set<Item>();
  for (let item = todo.pop(); item; item = todo.pop()) {
    if (seen.has(item)) continue;
    seen.add(item);
    if ([...next.get(item)!].some((each) => inside.has(each))) return true;
    todo.push(...outside(item));
  }
  return false;
}

/** The innermost module that all operators of a graph stand in. */
function commonModule(modules: Program["modules"], nodes: Node[]): number {
  let common: number[] | null = null;
  for (const node of nodes) {
    if (node.kind !== "operator") continue;
    const chain = chainOf(modules, node.module).reverse();
    const known: number[] = common ?? chain;
    let length = 0;
    while (length < known.length && known[length] === chain[length]) length++;
    common = known.slice(0, length);
  }
  return common?.at(-1) ?? 0;
}

function chainOf(modules: Program["modules"], id: number): number[] {
  const chain = [];
  for (let at = id; at > 0; at = modules[at]!.parent) chain.push(at);
  return chain;
}

export function isState(node: Node): boolean {
  return node.kind === "parameter" || node.kind === "buffer" || node.kind === "constant";
}

/** The nodes that are not drawn by themselves: weights, items of tuples, references to graphs, and
 * numbers that are computed from sizes alone. */
function findQuiet(nodes: Node[]): Set<number> {
  const found = new Set<number>();
  const sizes = new Set<number>();
  for (const node of nodes) {
    const isSize = node.kind === "size" && (/^sym_(size|stride|numel)/.test(node.short) || (node.inputs.length > 0 && node.inputs.every((i) => sizes.has(i))));
    if (isSize) sizes.add(node.id);
    if (isSize || isState(node) || node.kind === "item" || node.kind === "attribute") found.add(node.id);
  }
  return found;
}

/** Weights come right before who reads them, and last if nobody does. */
function orderOf(node: Node | null): number {
  if (!node) return Infinity;
  if (!isState(node)) return node.id;
  return node.users.length ? node.users[0]! - 0.5 : UNREAD + node.id;
}

function isCounted(item: Item): boolean {
  const kind = item.node?.kind;
  return kind === "operator" || kind === "size" || kind === "control" || (kind === "delegate" && !item.children.length);
}

function labelOf(node: Node): string {
  if (node.kind === "input" || isState(node)) return node.note || node.name;
  return node.kind === "output" ? "output" : node.short;
}

export function nodesIn(item: Item): Node[] {
  const found: Node[] = [];
  const walk = (each: Item): void => {
    if (each.node) found.push(each.node);
    each.children.forEach(walk);
  };
  walk(item);
  return found;
}
