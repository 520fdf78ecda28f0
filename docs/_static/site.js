// A button that copies the code of a block: of a console what is typed, without prompts and answers.
// Browsers give pages that come over plain HTTP no clipboard; these get no buttons.
document.addEventListener("DOMContentLoaded", () => {
    if (!navigator.clipboard) return;
    for (const pre of document.querySelectorAll("article .highlight:not(.highlight-none *) pre")) {
        const button = document.createElement("button");
        button.className = "copy";
        button.type = "button";
        button.textContent = "Copy";
        button.addEventListener("click", async () => {
            const code = pre.cloneNode(true);
            code.querySelectorAll(".gp, .go").forEach(one => one.remove());
            try {
                await navigator.clipboard.writeText(code.textContent.trimEnd() + "\n");
                button.textContent = "Copied";
            } catch {
                button.textContent = "Not allowed";
            }
            setTimeout(() => { button.textContent = "Copy"; }, 2000);
        });
        pre.parentElement.append(button);
    }
});
