#!/usr/bin/env python3
"""Results of `riverrun bench recurrence --json` and of recurrence.py, merged into one Markdown table on standard output.

    python3 table.py riverrun.json torch.json > table.md

A line is a gate, pass, storage type and shape; a column is a program's fastest routine, or one peer: milliseconds, and how
many times as long as riverrun it takes.
"""

import json
import sys


def main():
    files = [json.load(open(path)) for path in sys.argv[1:]]
    if not files:
        sys.exit(__doc__)
    cells, columns = {}, []
    for file in files:
        for row in file["rows"]:
            ours = "program" not in row
            column = "riverrun" if ours else f"{row['program']} {row['routine']}"
            if column not in columns:
                columns.append(column)
            key = (row["gate"], row["pass"], row["dtype"], row["batch"], row["steps"], row["dim"])
            time = row["time"]["median"]
            known = cells.setdefault(key, {}).get(column)
            if known is None or time < known:
                cells[key][column] = time
    if "riverrun" in columns:
        columns.remove("riverrun")
        columns.insert(0, "riverrun")
    for file in files:
        about = [file.get("name"), file.get("driver"), file.get("version"), file.get("commit")]
        copy = file["copy_gb_per_s"]
        print(f"- `{file['command']}`: {', '.join(filter(None, about))}; copy {copy:.0f} GB/s")
    print()
    print("| gate | pass | type | B × T × D | " + " | ".join(f"{name}, ms" for name in columns) + " |")
    print("| --- " * (4 + len(columns)) + "|")
    for (gate, step, dtype, *shape), times in cells.items():
        ours = times.get("riverrun")

        def cell(column):
            time = times.get(column)
            if time is None:
                return "—"
            ratio = f" ({time / ours:.2f} ×)" if ours and column != "riverrun" else ""
            return f"{time * 1e3:.4g}{ratio}"

        size = " × ".join(map(str, shape))
        print(f"| {gate} | {step} | {dtype} | {size} | " + " | ".join(map(cell, columns)) + " |")


main()
