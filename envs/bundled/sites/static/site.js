// The total of a basket's line follows its quantity while it is typed; the server has the last word when the line is updated.
document.querySelectorAll("input[data-price]").forEach((field) => {
  const total = field.closest("tr").querySelector("[data-total]");
  field.addEventListener("input", () => {
    const cents = Number(field.dataset.price) * Math.max(0, Math.floor(Number(field.value) || 0));
    total.textContent = "$" + (cents / 100).toLocaleString("en-US", { minimumFractionDigits: 2 });
  });
});
