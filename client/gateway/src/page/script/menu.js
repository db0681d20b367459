// Menus, and the dialogs that ask one question.

import { $, element, icon } from "./dom.js";

/**
 * Opens a menu at a button. Arrow keys move in it, and Escape closes it.
 * @param {HTMLElement} anchor
 * @param {{ text: string, icon: string, work: () => void, danger?: boolean }[]} entries
 */
export function openMenu(anchor, entries) {
  const menu = $("menu");
  menu.replaceChildren(...entries.map((entry) => {
    const button = element("button", { type: "button", className: entry.danger ? "danger" : "", aria: { role: "menuitem" } }, icon(entry.icon), entry.text);
    button.addEventListener("click", () => { menu.hidePopover(); anchor.focus(); entry.work(); });
    return button;
  }));
  // A reader of landmarks finds the menu where its button is.
  anchor.closest("nav, main").append(menu);
  menu.showPopover();
  const at = anchor.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(at.right - width, innerWidth - width - 8))}px`;
  menu.style.top = `${at.bottom + height + 8 > innerHeight ? Math.max(8, at.top - height - 4) : at.bottom + 4}px`;
  menu.onkeydown = (event) => {
    const buttons = [...menu.children];
    const index = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    buttons.at(to % buttons.length).focus();
  };
  menu.ontoggle = (event) => { if (event.newState === "closed" && menu.contains(document.activeElement)) anchor.focus(); };
  menu.firstChild.focus();
}

/** Opens a dialog and waits for the value with which it closes. @param {HTMLDialogElement} dialog */
export function answerOf(dialog) {
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));
}

/** Asks before something that cannot be undone. */
export async function confirmed(question, deed) {
  $("confirmText").textContent = question;
  $("confirmDeed").textContent = deed;
  return await answerOf($("confirm")) === "yes";
}

/** Asks for a title; null if the person cancels. */
export async function askTitle(title) {
  $("newTitle").value = title;
  const answered = answerOf($("rename"));
  $("newTitle").select();
  return await answered === "yes" ? $("newTitle").value.trim() : null;
}
