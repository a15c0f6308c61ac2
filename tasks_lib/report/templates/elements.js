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
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

const decimals = (value, digits) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
