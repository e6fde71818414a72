// Brings the page up to date every few seconds, in place: what is the same stays as it is, so that the place on the
// page, what is open, marked or typed, and what the pointer is on are kept. Without scripts the page loads itself anew.
"use strict";

const EVERY_MS = 5000;
let mark = ""; // of what is shown: where it is still the same, the dashboard says so and no more

function become(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
    return;
  }
  if (old.nodeName === "FORM" && old.contains(document.activeElement)) return;
  const kept = old.nodeName === "DETAILS" ? "open" : "";
  for (const { name } of [...old.attributes]) {
    if (name !== kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const now = [...old.childNodes];
  const then = [...fresh.childNodes];
  then.forEach((node, index) => (index < now.length ? become(now[index], node) : old.append(node)));
  now.slice(then.length).forEach((node) => node.remove());
}

function complain(why) {
  const line = document.getElementById("stale");
  const words = `This page is not brought up to date any more: ${why}.`;
  if (line.textContent !== words) line.textContent = words;
  line.hidden = false;
}

async function refresh() {
  if (document.hidden) return;
  let answer;
  try {
    answer = await fetch(location.href, { cache: "no-store", headers: { "If-None-Match": mark } });
  } catch {
    complain("the dashboard does not answer");
    return;
  }
  if (answer.status === 304) {
    document.getElementById("stale").hidden = true;
    return;
  }
  if (!answer.ok && answer.status !== 503 && answer.status !== 404) {
    complain(`the dashboard answers ${answer.status}`);
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  mark = answer.headers.get("ETag") || "";
  document.title = fresh.title;
  become(document.body, fresh.body);
}

async function again() {
  await refresh();
  setTimeout(again, EVERY_MS);
}

setTimeout(again, EVERY_MS);
document.addEventListener("visibilitychange", refresh);
