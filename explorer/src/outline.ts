// The panel at the left: the modules of the program as a tree, with the same folds as the drawing.

import { h, Rows } from "./dom";
import { categoryOf } from "./theme";
import type { Item } from "./tree";
import type { View } from "./view";

export class Outline {
  private readonly rows: Rows<Item>;
  private view: View | null = null;
  private shown: Item[] = [];

  constructor(private readonly focus: (item: Item) => void) {
    this.rows = new Rows<Item>((item) => this.row(item));
    this.rows.element.setAttribute("role", "tree");
    this.rows.element.setAttribute("aria-label", "Modules");
    this.rows.element.addEventListener("keydown", (e) => this.key(e as KeyboardEvent));
  }

  get element(): HTMLElement {
    return this.rows.element;
  }

  update(view: View): void {
    this.view = view;
    this.shown = [];
    const walk = (item: Item): void => {
      for (const child of item.children) {
        this.shown.push(child);
        if (child.isOpen) walk(child);
      }
    };
    walk(view.tree.root);
    this.rows.set(this.shown);
    const at = view.selected ? this.shown.indexOf(view.selected) : -1;
    if (at >= 0) this.rows.scrollTo(at);
  }

  private row(item: Item): HTMLElement {
    const isGroup = item.children.length > 0;
    const isSelected = this.view?.selected === item;
    const fold = isGroup
      ? h("button", { class: item.isOpen ? "fold open" : "fold", type: "button", tabindex: -1, "aria-label": item.isOpen ? "Fold" : "Unfold", click: (e: Event) => this.toggle(item, e) }, "›")
      : h("i", { class: "dot", style: `background:${item.node ? categoryOf(item.node).hue : "transparent"}` });
    return h(
      "div",
      {
        class: isSelected ? "row selected" : "row", role: "treeitem", "data-path": item.path, "data-role": item.role,
        style: `padding-left:${8 + (item.depth - 1) * 14}px`, title: [...new Set([item.label, item.node?.note, item.path, item.sub])].filter(Boolean).join(" · "),
        click: () => this.focus(item), dblclick: (e: Event) => this.toggle(item, e),
      },
      fold,
      h("span", { class: isGroup ? "name group" : "name" }, item.label),
      h("span", { class: "sub" }, isGroup ? item.sub : item.node && item.node.name !== item.label ? item.node.name : ""),
      isGroup && h("span", { class: "count" }, String(item.count)),
    );
  }

  private toggle(item: Item, event: Event): void {
    event.stopPropagation();
    this.view?.toggle(item);
  }

  private key(e: KeyboardEvent): void {
    const view = this.view;
    if (!view) return;
    const at = view.selected ? this.shown.indexOf(view.selected) : -1;
    const item = this.shown[at];
    if (e.key === "ArrowDown") this.focus(this.shown[Math.min(at + 1, this.shown.length - 1)]!);
    else if (e.key === "ArrowUp") this.focus(this.shown[Math.max(at - 1, 0)]!);
    else if (e.key === "ArrowRight" && item && !item.isOpen && item.children.length) this.toggle(item, e);
    else if (e.key === "ArrowLeft" && item?.isOpen) this.toggle(item, e);
    else if (e.key === "ArrowLeft" && item?.parent?.parent) this.focus(item.parent);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }
}
