"""What `tests/release.py` does without a package index: it cuts notes, and knows failures."""

import sys

import pytest
import release

CHANGELOG = """# Changelog

What changed.

## 1.1.0 (2027-01-31)

New.

### Added

- **One.** It says
  two lines.

## 1.0.0 (2026-01-01)

- **Old.**
"""


def test_the_notes_are_the_newest_section_without_its_heading():
    notes, is_dated = release.notes_of(CHANGELOG, "1.1.0")
    assert notes == "New.\n\n### Added\n\n- **One.** It says\n  two lines.\n"
    assert is_dated


def test_notes_of_a_version_without_a_day_are_known_as_such():
    assert not release.notes_of(CHANGELOG.replace("2027-01-31", "unreleased"), "1.1.0")[1]


@pytest.mark.parametrize("day", ["1.1.0", "1.1.0 (soon)", "1.1.0rc1 (2027-01-31)", "1.0.0 (2027-01-31)"])
def test_a_changelog_of_another_version_makes_no_release(day):
    with pytest.raises(release.ReleaseError, match=r"yogadl/VERSION says 1\.1\.0"):
        release.notes_of(CHANGELOG.replace("1.1.0 (2027-01-31)", day), "1.1.0")


def test_the_changelog_of_this_version_has_notes():
    version = (release.ROOT / "yogadl" / "VERSION").read_text("utf-8").strip()
    notes, _ = release.notes_of((release.ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    assert "- **" in notes
    assert "\n## " not in notes


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "import warnings; warnings.warn('w')",
        "print('warning: no files found')",
        "print('WARNING  no description')",
        "print('SetuptoolsDeprecationWarning')",
        "print('this is deprecated')",
    ],
)
def test_a_step_that_fails_or_warns_ends_the_release_with_what_it_said(program):
    with pytest.raises(release.ReleaseError, match=r"failed|warned"):
        release.run(sys.executable, "-c", program)


def test_a_step_that_does_neither_gives_what_it_said():
    said = "copying tests/test_warnings.py"
    assert release.run(sys.executable, "-c", f"print('{said}')", PYTHONWARNINGS="error") == f"{said}\n"
