"use strict";
// Everything shown here comes from web pages and policies: it goes onto the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "circle", "rect", "line"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

function present(children) {
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  return shown.map((child) => (typeof child === "string" ? visible(child) : child));
}

// A text without characters that hide what stands there: those of terminals, and those that turn the direction of others.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

const decimals = (value, digits) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
