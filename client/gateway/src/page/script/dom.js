// Elements, icons and the clipboard.

/** @param {string} id */
export const $ = (id) => document.getElementById(id);

/**
 * Makes an element. Text becomes text nodes, never markup.
 * @param {string} tag
 * @param {Record<string, any>} [properties] Properties; `aria` and `data` are objects of attributes.
 * @param {...(Node | string)} children
 */
export function element(tag, properties = {}, ...children) {
  const { aria = {}, data = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(name === "role" ? name : `aria-${name}`, value);
  Object.assign(made.dataset, data);
  made.append(...children);
  return made;
}

/** Strokes on a grid of 24. */
const ICONS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 13l4 4L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M4 12a8 8 0 1 0 3-6.2M4 4v5h5",
  branch: "M6 4v16M6 14c0-5 12-2 12-9M15 7l3-3 3 3",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14M16 16l4 4",
  settings: "M4 8h9M19 8h1M16 5.5v5M4 16h2M12 16h8M9 13.5v5",
  key: "M14 10a5 5 0 1 0-4 4l2-1 1 2h2l1 2h3v-4z",
  shield: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4",
};

/** A decorative icon. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  for (const [key, value] of [["viewBox", "0 0 24 24"], ["class", "icon"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
  path.setAttribute("d", ICONS[name]);
  if (name === "more") svg.classList.add("bold");
  svg.append(path);
  return svg;
}

/**
 * A button with an icon; its label is its name and its tooltip.
 * @param {string} name The icon.
 * @param {string} label
 * @param {(event: MouseEvent) => void} work
 */
export function iconButton(name, label, work, properties = {}) {
  const button = element("button", { type: "button", className: "tool", title: label, aria: { label }, ...properties }, icon(name));
  button.addEventListener("click", work);
  return button;
}

/** A button with a text. */
export function textButton(text, work, properties = {}) {
  const button = element("button", { type: "button", textContent: text, ...properties });
  button.addEventListener("click", work);
  return button;
}

/** Puts a text on the clipboard and shows it on the button. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers offer the clipboard only to local addresses and to HTTPS.
    const box = element("textarea", { value: text, className: "hidden" });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  const label = button.getAttribute("aria-label");
  button.replaceChildren(icon("done"));
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.replaceChildren(icon("copy"));
    button.setAttribute("aria-label", label);
  }, 1500);
}

let noticeTimer = 0;

/** Shows a notice over the page for a while; an error stays until the next one. */
export function notice(text, kind = "") {
  clearTimeout(noticeTimer);
  const place = $("notice");
  place.textContent = text;
  place.className = kind;
  place.hidden = !text;
  if (text && kind !== "bad") noticeTimer = setTimeout(() => notice(""), 6000);
}
