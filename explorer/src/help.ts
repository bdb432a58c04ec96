// What keys and the mouse do.

import { h } from "./dom";

const KEYS: [string, string][] = [
  ["click", "select"],
  ["double click, + and −", "unfold or fold a group"],
  ["wheel, drag", "zoom, move"],
  ["/", "search; Enter and n: the next match"],
  ["Enter, space", "unfold or fold the selected group"],
  ["↑ ↓", "along the edges"],
  ["← →", "out of a group, into a group"],
  ["u, 0", "unfold one level more, fold everything"],
  ["f", "fit the drawing to the window"],
  ["c", "compare stages side by side"],
  ["m", "memory over the program's life"],
  ["a", "show weights and items of tuples, too"],
  ["[ ]", "show or hide the panels"],
  ["t", "light or dark"],
  ["Esc", "clear the search, or the selection"],
];

export function showHelp(root: HTMLElement): void {
  const dialog = h("dialog", { class: "help", "aria-label": "Help" }) as HTMLDialogElement;
  dialog.append(
    h("h2", {}, "Keys"),
    h("dl", {}, ...KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("button", { class: "wide", type: "button", click: () => dialog.close() }, "Close"),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (e) => e.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (e) => e.stopPropagation());
  root.append(dialog);
  dialog.showModal();
}
