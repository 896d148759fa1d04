const button = document.createElement("button");
button.textContent = "Show commands";
button.addEventListener("click", () => {
  const shown = document.body.classList.toggle("commands");
  button.textContent = shown ? "Hide commands" : "Show commands";
});
document.querySelector("nav").append(button);
