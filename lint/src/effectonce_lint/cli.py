"""The command `effectonce-lint`. `effectonce lint` forwards to it.

Exit codes: 0 clean, 1 there are findings, 2 wrong usage or a file that could not be checked.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from . import engine, explain, fixes, suppressions
from .config import Config, load_config
from .findings import Finding, LintError
from .output import FORMATS
from .output.printable import display_path
from .output.text import as_statistics
from .proposals import propose_declarations
from .rules import RULES

PROGRAM = "effectonce-lint"


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the checker and return its exit code. ``program`` is the command that the user typed."""
    parser = command_line(program)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack letters of the code that is shown
    try:
        options = parser.parse_args(arguments)
        code = _run(options)
        sys.stdout.flush()
        return code
    except LintError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `effectonce-lint | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Reports a mistyped option with the one that was meant."""

    def error(self, message: str) -> NoReturn:
        unknown = message.split() if message.startswith("unrecognized") else ()
        meant = [match for word in unknown for match in get_close_matches(word, self._option_string_actions)]
        question = f". Did you mean {' or '.join(meant)}?" if meant else ""
        raise LintError(f"{message}{question}\nTry: {self.prog} --help")


def command_line(program: str = PROGRAM) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Find the consumer that will charge twice, before it does.",
        epilog="Settings: [tool.effectonce.lint] in pyproject.toml. To hide a finding: # effectonce: ignore[P11] why",
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and folders (default: this folder)")
    add(
        "--output-format",
        choices=list(FORMATS),
        default="full",
        metavar="FORMAT",
        help=", ".join(FORMATS) + " (default: full)",
    )
    add("--json", dest="output_format", action="store_const", const="json", help="short for --output-format json")
    add("--output-file", metavar="FILE", help="write to this file instead of the terminal")
    add(
        "--select",
        metavar="RULES",
        type=_split_rules,
        help="only these rules, as in P11,EO1 (a prefix selects every rule that begins with it)",
    )
    add("--ignore", metavar="RULES", type=_split_rules, help="not these rules")
    add("--extend-select", metavar="RULES", type=_split_rules, default=[], help="these rules as well")
    add("--all", action="store_true", help="also show findings that are less sure than the setting `confidence` (0.8)")
    add("--designs", action="store_true", help="also check lists of consumers, Markdown, Mermaid and SQL files")
    add("--fix", action="store_true", help="apply the fixes that can be made mechanically")
    add("--diff", action="store_true", help="show what --fix would change, and change nothing")
    add("--explain", nargs="?", const="", metavar="RULE", help="explain rules: P11, or EO1; without one, list all")
    add("--init", action="store_true", help="propose consumers to declare in pyproject.toml")
    add("--statistics", action="store_true", help="count by rule instead of listing")
    add("--baseline", metavar="FILE", help="leave out findings that this baseline has")
    add("--write-baseline", metavar="FILE", help="write all findings into a baseline")
    add("--as-found", action="store_true", help="leave out excluded files even if they are named")
    add("--exclude", metavar="PATTERNS", type=lambda text: text.split(","), default=[], help="paths to leave out")
    add("--config", metavar="FILE", default="", help="the pyproject.toml to read (default: the nearest one, upward)")
    add("--isolated", action="store_true", help="read no pyproject.toml")
    add("--no-cache", action="store_true", help="check every file again")
    add("--cache-dir", metavar="FOLDER", help="default: .effectonce_cache")
    add("--jobs", "-j", type=int, default=0, metavar="N", help="processes (default: one per core, if it pays)")
    add("--color", "--colour", choices=("auto", "always", "never"), default="auto", help="default: auto")
    add("--exit-zero", action="store_true", help="exit with 0 even if something was found")
    add(
        "--stdin-filename",
        metavar="FILE",
        help="check standard input as if it were this file; print one line for each finding",
    )
    add(
        "--quiet",
        "-q",
        action="store_true",
        help="print findings and what was skipped; no summary if there is neither",
    )
    add("--version", "-V", action="version", version=f"{PROGRAM} {version('effectonce-lint')}")
    return parser


def _split_rules(text: str) -> list[str]:
    return [rule.strip().upper() for rule in text.split(",") if rule.strip()]


def _run(options: argparse.Namespace) -> int:
    if options.explain is not None:
        return _print_explanation(options.explain)
    paths = options.paths or [options.stdin_filename or "."]
    config = Config() if options.isolated else load_config(paths, options.config)
    if options.select is not None:
        config.select = options.select
    config.select = [*config.select, *options.extend_select]
    config.ignore = [*config.ignore, *(options.ignore or [])]
    config.exclude = [*config.exclude, *options.exclude]
    config.cache_dir = options.cache_dir or config.cache_dir
    config.confidence = 0.0 if options.all else config.confidence
    config.designs = config.designs or options.designs
    config.check("--select and --ignore")
    if options.init:
        print(propose_declarations(paths, config))
        return 0
    if options.stdin_filename:
        # a frame of code would show the file as it was saved
        options.output_format = "concise" if options.output_format == "full" else options.output_format
        report = engine.run_on_text(options.stdin_filename, sys.stdin.buffer.read(), config)
        return _report_findings(report, options, config)
    run_options = {"jobs": options.jobs, "cache": not options.no_cache, "as_found": options.as_found}
    report = engine.run(paths, config, **run_options)
    if options.fix or options.diff:
        fixed = _apply_fixes(report.findings, write=not options.diff)
        if options.diff:
            return 2 if report.has_unreadable_files else 1 if fixed else 0
        if fixed:
            report = engine.run(paths, config, **run_options)
    return _report_findings(report, options, config)


def _report_findings(report: engine.LintReport, options: argparse.Namespace, config: Config) -> int:
    """Print the findings, or write them into a baseline. Returns the exit code."""
    unreadable = [finding for finding in report.findings if finding.rule == "EO900"]
    findings = [(display_path(finding.place.path), finding) for finding in report.findings if finding.rule != "EO900"]
    if options.write_baseline:
        suppressions.write_baseline(options.write_baseline, findings)
        print(f"{len(findings)} finding{'s' if len(findings) != 1 else ''} written to {options.write_baseline}")
        return 2 if unreadable else 0
    baseline = options.baseline or config.baseline
    if baseline:
        report.findings = unreadable + suppressions.new_findings(suppressions.read_baseline(baseline), findings)
        report.findings.sort(key=lambda finding: (*finding.place.start, finding.rule))
    _print_report(report, options)
    if report.has_unreadable_files:
        return 2
    return 1 if report.findings and not options.exit_zero else 0


def _print_report(report: engine.LintReport, options: argparse.Namespace) -> None:
    colours = options.color == "always" or (
        options.color == "auto"
        and not options.output_file
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
    if options.statistics:
        text = as_statistics(report, colours)
    elif options.quiet and not report.is_notable and options.output_format in ("full", "concise"):
        text = ""
    else:
        text = FORMATS[options.output_format](report, colours)
    if options.output_file:
        try:
            with open(options.output_file, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise LintError(f"cannot write {options.output_file}: {error.strerror}") from None
    elif text:
        print(text)


def _apply_fixes(findings: list[Finding], *, write: bool) -> int:
    """Apply the fixes, or print them as a diff. Returns how many findings they fix."""
    changed = fixes.plan_fixes(findings)
    count = 0
    for path, (before, after, fixed) in sorted(changed.items()):
        count += fixed
        if write:
            fixes.replace_file(path, after)
        else:
            print(fixes.unified_diff(path, before, after), end="")
    where = f"in {len(changed)} file{'s' if len(changed) != 1 else ''}"
    if count:
        words = "Fixed" if write else "Would fix"
        print(f"{words} {count} problem{'s' if count != 1 else ''} {where}.", file=sys.stdout if write else sys.stderr)
    return count


def _print_explanation(rule: str) -> int:
    if not rule:
        print(explain.list_rules())
        return 0
    prefix = rule.upper().replace("-", "")
    explained = [known for known in RULES.values() if known.name == rule.lower() or known.id.startswith(prefix)]
    if not explained:
        raise LintError(f"there is no rule {rule!r}; `{PROGRAM} --explain` lists them")
    print("\n\n\n".join(map(explain.explain_rule, explained)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
