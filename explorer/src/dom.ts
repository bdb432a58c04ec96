// Elements of the page. Texts of a program are only ever set as text, never as HTML.

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

export function h(tag: string, props: Props = {}, ...children: Child[]): HTMLElement {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

export function button(text: string, title: string, click: () => void, name = ""): HTMLElement {
  return h("button", { class: "tool", type: "button", title, "aria-label": title, click, "data-name": name || undefined }, text);
}

export function section(title: string, ...children: Child[]): HTMLElement {
  return h("section", {}, h("h3", {}, title), ...children);
}

/** Texts that are cut to fit are told in full when somebody points at them. */
export function showCutTexts(root: HTMLElement): void {
  root.addEventListener("pointerover", (e) => {
    const element = e.target as HTMLElement;
    if (!element.title && element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).textOverflow === "ellipsis") {
      element.title = element.textContent ?? "";
    }
  });
}

/** Offers a file for download. */
export function save(content: Blob, name: string): void {
  const href = URL.createObjectURL(content);
  h("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

/** A list of which only the rows in sight are elements. */
export class Rows<T> {
  readonly element = h("div", { class: "rows", tabindex: 0, role: "listbox" });
  private readonly inner = h("div", { class: "rows-inner" });
  private items: T[] = [];

  constructor(private readonly make: (item: T, index: number) => HTMLElement, private readonly height = 26) {
    this.element.append(this.inner);
    this.element.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  set(items: T[]): void {
    this.items = items;
    this.draw();
  }

  scrollTo(index: number): void {
    const top = index * this.height, { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top > scrollTop + clientHeight - this.height) {
      this.element.scrollTop = top - clientHeight / 2;
    }
    this.draw();
  }

  draw(): void {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(Math.floor(scrollTop / this.height) - 4, 0);
    const last = Math.min(Math.ceil((scrollTop + clientHeight) / this.height) + 4, this.items.length);
    this.inner.style.height = `${this.items.length * this.height}px`;
    this.inner.replaceChildren(
      ...this.items.slice(first, last).map((item, i) => {
        const row = this.make(item, first + i);
        row.style.top = `${(first + i) * this.height}px`;
        row.style.height = `${this.height}px`;
        return row;
      }),
    );
  }
}
