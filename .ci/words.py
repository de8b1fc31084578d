#!/usr/bin/env python3
"""Checks the language and the links of what people read.

    words.py [FILE ...]

Without arguments it reads every tracked file of src, kernels, tests, benches, tools, examples, docs, launch, config,
engines and the documents at the top. It fails on

* words of the list below in text (comments, messages, documents),
* documentation comments and documents with a sentence that starts with one of STARTS,
* Markdown lines over 120 columns (tables and console output of docs/records and generated tables excepted),
* relative links in Markdown that lead nowhere,
* citations in the code of sections and rows that docs/algorithm.md and docs/reference-defects.md do not have,
* test names in docs/reference-defects.md that no test has.

CONTRIBUTING.md has the rules of language; this checks what a script can.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "kernels", "tests", "benches", "tools", "examples", "docs", "launch", "config", "engines", "deploy", ".ci"]
SUFFIXES = {".rs", ".cu", ".cuh", ".md", ".py", ".yaml", ".toml", ".txt", ".xml"}
# This file and the rules name the words.
EXEMPT = {".ci/words.py", "CONTRIBUTING.md"}
GENERATED = {"docs/kernels.md", "docs/configuration.md"}
COLUMNS = 120

WORDS = re.compile(
    r"\b(nobody|whoever|whomever|somebody|anybody|heed|heeds|heeded|thereof|(?<!there )(?:is|are) (?-i:none))\b(?! of\b)", re.IGNORECASE
)
# Of a citation of the specification that is not in the repository.
CITATION = re.compile(r"\b[Ss]pec \d")
STARTS = ("Of", "Whoever", "Whomever")
START = re.compile(r"(?:^|[.!?] )(" + "|".join(STARTS) + r")\b(?! course\b)")
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def tracked():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listing.splitlines():
        path = pathlib.PurePosixPath(name)
        top = path.parts[0]
        if (len(path.parts) == 1 or top in FOLDERS) and path.suffix in SUFFIXES:
            if not name.startswith("tests/data/"):
                yield name


def sentences(name, lines):
    """(line number, text) of documentation comments, or of a document's prose."""
    if name.endswith(".md"):
        fence = False
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                fence = not fence
            elif not fence:
                previous = lines[number - 2].strip() if number > 1 else ""
                # A line that goes on with the sentence of the line before starts none.
                first = not previous or re.match(r"\s*([*-]|\d+\.|#|\|)", line) or previous.endswith((".", ":", "|"))
                text = re.sub(r"^\s*([*-]|\d+\.|#+|\|)\s*", "", line)
                yield number, text if first else "- " + text
    elif name.endswith((".rs", ".cu", ".cuh")):
        before = ""
        for number, line in enumerate(lines, 1):
            comment = re.match(r"\s*(///|//!|//)\s?(.*)", line)
            if comment:
                goes_on = before and not before.rstrip().endswith((".", ":", "!", "?", ";"))
                yield number, ("- " if goes_on else "") + comment[2]
                before = comment[2]
            else:
                before = ""


def check(name, failures):
    text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    named = name in EXEMPT
    for number, line in enumerate([] if named else lines, 1):
        for found in (WORDS.search(line), CITATION.search(line)):
            if found:
                failures.append(f"{name}:{number}: {found[0]!r}: {line.strip()[:100]}")
    for number, line in [] if named else sentences(name, lines):
        if found := START.search(line):
            failures.append(f"{name}:{number}: a sentence starts with {found[1]!r}: {line.strip()[:100]}")
    if name.endswith(".md"):
        markdown(name, lines, failures)


def markdown(name, lines, failures):
    record, fence = name.startswith("docs/records/"), False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        table = line.startswith("|")
        wide = (record and (fence or table)) or (name in GENERATED and table)
        if len(line) > COLUMNS and not wide:
            failures.append(f"{name}:{number}: {len(line)} columns, at most {COLUMNS}")
        for target in () if fence else LINK.findall(line):
            if not (ROOT / name).parent.joinpath(target[0]).exists():
                failures.append(f"{name}:{number}: nothing is at {target[0]}")


def defects(failures):
    """Every test that docs/reference-defects.md names exists, in full or by its beginning (name_…)."""
    name = "docs/reference-defects.md"
    listing = subprocess.run(
        ["git", "grep", "-hoE", r"fn [a-z][a-z0-9_]+\(|mod [a-z][a-z0-9_]+", "--", "src", "tests"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    functions = {line.split(" ")[1].rstrip("(") for line in listing.splitlines()}
    functions |= {pathlib.PurePosixPath(f).stem for f in tracked() if f.startswith("tests/")}
    for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
        for test, more in re.findall(r"`([a-z]+(?:_[a-z0-9]+){2,})(_…)?`", line):
            known = any(f.startswith(test) for f in functions) if more else test in functions
            if not known:
                failures.append(f"{name}:{number}: no test is called {test}{more}")


def cited(names, failures):
    """Sections of docs/algorithm.md and rows of docs/reference-defects.md that the code cites exist."""
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/algorithm.md").read_text(), re.MULTILINE)
    rows = set(re.findall(r"\*\*(B\d\d)\*\*", (ROOT / "docs/reference-defects.md").read_text()))
    for name in names:
        if not name.endswith((".rs", ".cu", ".cuh")):
            continue
        # A citation may go on in the next line of a comment.
        text = re.sub(r"\n\s*(///|//!|//) ?", " ", (ROOT / name).read_text(errors="replace"))
        for section in re.findall(r"docs/algorithm\.md, ([A-Z][a-z]+(?: [a-z]+)*)", text):
            if not any(section.startswith(heading) for heading in headings):
                failures.append(f"{name}: docs/algorithm.md has no section {section!r}")
        for row in re.findall(r"docs/reference-defects\.md, (B\d\d)", text):
            if row not in rows:
                failures.append(f"{name}: docs/reference-defects.md has no row {row}")


def main():
    names = sys.argv[1:] or list(tracked())
    failures = []
    for name in names:
        check(name, failures)
    cited(names, failures)
    if not sys.argv[1:]:
        defects(failures)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    print(f"{len(names)} files, {len(failures)} errors")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
