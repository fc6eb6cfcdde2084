#!/usr/bin/env python3
"""Results of `riverrun bench recurrence|cell|train|attention|rssm --json` and of the scripts beside this one, merged into one
Markdown table on standard output.

    python3 table.py riverrun.json torch.json > table.md

A line is a problem; a column is a program's fastest routine, or one peer: milliseconds, and how many times as long as riverrun
it takes. The last column names the fastest peer with that ratio. Files of one kind go together.
"""

import json
import sys

# What tells one line from another, by what is measured.
KEYS = {
    "recurrence": ("gate", "pass", "dtype", "batch", "steps", "dim"),
    "cell": ("cell", "pass", "dtype", "batch", "steps", "hidden", "heads"),
    "attention": ("pass", "dtype", "batch", "heads", "key_heads", "steps", "dim", "causal", "window"),
    "rssm": ("size", "pass", "dtype", "batch", "steps"),
    "train": ("cell", "dtype", "width", "layers", "batch", "steps", "vocab"),
}


def cell_of(row):
    """The model: PyTorch's nn.GRU stands beside our gru, every form of Griffin beside griffin, every form of minGRU beside min-gru."""
    layers = {"nn.GRU": "gru", "nn.LSTM": "lstm", "griffin": "griffin", "gpt2": "gpt2"}
    return layers.get(row["routine"].split("-")[0], "min-gru")


def seconds(row):
    """Of the forms in which a row was measured, the fastest: as called, or recorded and replayed."""
    times = (row.get("time", row.get("step")), row.get("recorded"))
    return min(time["median"] for time in times if time)


def kind(rows):
    for name, keys in KEYS.items():
        if rows and all(key in rows[0] for key in keys):
            return name
    sys.exit("a file of another kind, or without rows")


def column_of(row):
    program = row.get("program", "riverrun")
    if program == "riverrun":
        return program
    return " ".join(filter(None, (program, row.get("routine"))))


def with_sums(lines):
    """After the two passes of a problem, which were measured by themselves, their sum."""
    found = {}
    for line, times in lines.items():
        found[line] = times
        ahead = lines.get(("forward", *line[1:]), {})
        if line[0] == "backward":
            found["forward + backward", *line[1:]] = {name: ahead[name] + times[name] for name in ahead if name in times}
    return found


def main():
    files = [json.load(open(path)) for path in sys.argv[1:]]
    if not files:
        sys.exit(__doc__)
    for file in files:
        for row in file["rows"]:
            if "us_per_step" in row:
                row.setdefault("heads", 1)
            if "width" in row and "routine" in row and "cell" not in row:
                row["cell"] = cell_of(row)
            # The same work in another form.
            if "size" in row and row.get("pass") == "sequence":
                row["pass"] = "observe"
    kinds = {kind(file["rows"]) for file in files}
    if len(kinds) > 1:
        sys.exit(f"files of several kinds: {', '.join(sorted(kinds))}")
    keys = KEYS[kinds.pop()]
    lines, columns = {}, []
    for file in files:
        for row in file["rows"]:
            column = column_of(row)
            if column not in columns:
                columns.append(column)
            line = lines.setdefault(tuple(row[key] for key in keys), {})
            time = seconds(row)
            line[column] = min(time, line.get(column, time))
    if keys[0] == "pass":
        lines = with_sums(lines)
    columns.sort(key=lambda name: name != "riverrun")
    for file in files:
        about = [file.get(key) for key in ("name", "driver", "version", "commit")]
        copy = f"; copy {file['copy_gb_per_s']:.0f} GB/s" if "copy_gb_per_s" in file else ""
        print(f"- `{file['command']}`: {', '.join(filter(None, about))}{copy}")
    print()
    print(f"| {' | '.join(keys)} | " + " | ".join(f"{name}, ms" for name in columns) + " | best peer |")
    print("| --- " * (len(keys) + len(columns) + 1) + "|")
    for line, times in lines.items():
        ours = times.get("riverrun")

        def cell(column):
            time = times.get(column)
            if time is None:
                return "—"
            ratio = f" ({time / ours:.2f} ×)" if ours and column != "riverrun" else ""
            return f"{time * 1e3:.4g}{ratio}"

        peers = [(times[name], name) for name in columns if not name.startswith("riverrun") and name in times]
        best = "—"
        if peers and ours:
            time, name = min(peers)
            best = f"{name}, {time / ours:.2f} ×"
        print(f"| {' | '.join(map(str, line))} | " + " | ".join(map(cell, columns)) + f" | {best} |")


main()
