"""Print the table "How it compares" of README.md from results/real_embeddings.json; no arguments."""

import json
from pathlib import Path
from typing import Any

from _common import RESULTS, table

README = Path(__file__).parent.parent / "README.md"
HEAD = ["embeddings, encoder", "accuracy, %", "LR", "NLL", "LR", "ECE", "LR"]
NAMES = {
    "photos-cub": "birds (CUB), EfficientNet-Lite2",
    "photos-mini-imagenet": "mini-ImageNet, EfficientNet-Lite2",
    "photos-emnist": "EMNIST, EfficientNet-Lite2",
    "characters-emnist": "EMNIST, `glyphs`",
    "characters-omniglot": "Omniglot, `glyphs`",
    "characters-digits": "digits, `glyphs`",
    "texts-docstrings": "docstrings, wordllama",
    "texts-packages": "package descriptions, wordllama",
    "texts-manuals": "manual pages, wordllama",
    "table-wine": "wine, 13 measurements",
    "table-cancer": "breast cancer, 30 measurements",
    "table-iris": "iris, 4 measurements",
}
PACKAGED = "characters-"  # sets of the encoder with a packaged prior
DIGITS = {"accuracy": 1, "nll": 3, "ece": 3}


def scores(methods: dict[str, Any], metric: str, own: str) -> tuple[float, float]:
    """Return the scores of the row `own` of the classifier, and of logistic regression with the best C on the queries.

    For ECE, C is that of the best NLL.
    """
    rivals = [scored for name, scored in methods.items() if name.startswith("LR")]
    if metric == "accuracy":
        return 100 * methods[own]["accuracy"], 100 * max(scored["accuracy"] for scored in rivals)
    return methods[own][metric], min(rivals, key=lambda scored: scored["nll"])[metric]


def cells(shots: list[dict[str, Any]], metric: str) -> list[str]:
    """Return two cells of one and five shots; the better number is bold, both if they are printed equal."""
    digits, sign = DIGITS[metric], 1 if metric == "accuracy" else -1
    own, other = [], []
    for result in shots:
        row = "mirrorshot, prior" if result["set"].startswith(PACKAGED) else "mirrorshot"
        ours, rival = (round(value, digits) for value in scores(result["methods"], metric, row))
        own.append(f"**{ours:.{digits}f}**" if sign * ours >= sign * rival else f"{ours:.{digits}f}")
        other.append(f"**{rival:.{digits}f}**" if sign * rival >= sign * ours else f"{rival:.{digits}f}")
    return [" / ".join(own), " / ".join(other)]


def readme_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for key, name in NAMES.items():
        found = [result for result in results if result["set"] == key and result["n_way"] <= 5]
        if found:
            shots = sorted(found, key=lambda result: int(result["n_shot"]))
            rows.append([name, *[cell for metric in DIGITS for cell in cells(shots, metric)]])
    return table(HEAD, rows)


def main() -> None:
    made = readme_table(json.loads((RESULTS / "real_embeddings.json").read_text())["results"])
    text = README.read_text("utf-8")
    start = text.index("| " + " | ".join(HEAD))
    README.write_text(text[:start] + made + text[text.index("\n\n", start) :], "utf-8")
    print(made)


if __name__ == "__main__":
    main()
