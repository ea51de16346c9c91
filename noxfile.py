"""What to run: ``nox -s sim``, ``nox -s tests``, ``nox -s lint``, ``nox -s typecheck``."""

import nox

nox.options.sessions = ["lint", "typecheck", "tests"]
nox.options.reuse_existing_virtualenvs = True
SOURCES = ("arrol", "sim", "tests", "bench", "noxfile.py")


@nox.session
def sim(session: nox.Session) -> None:
    """Simulate the paper's tables and write sim-results/."""
    session.install("-c", "constraints.txt", ".")
    session.run("arrol", "sim", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite, on the base package and what tests need."""
    session.install("-c", "constraints.txt", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Rules and format."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check", *SOURCES)
    session.run("ruff", "format", "--check", *SOURCES)


@nox.session
def typecheck(session: nox.Session) -> None:
    """mypy --strict, on the installed wheel: it can't follow the folder mapping in the tree."""
    session.install("-c", "constraints.txt", ".[dev]")
    session.chdir(session.create_tmp())
    session.run("mypy", "--config-file", f"{session.invoked_from}/pyproject.toml", "-p", "arrol")


@nox.session
def bench(session: nox.Session) -> None:
    """Every speed claim, measured here and now; ``nox -s bench -- step_time_fit.py FILE``."""
    session.install("-c", "constraints.txt", ".")
    scripts = [session.posargs] if session.posargs else [["decide.py"], ["engine_speed.py"]]
    for name, *arguments in scripts:
        session.run("python", f"bench/{name}", *arguments)
