"""What holds for the package as a whole."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for part in ("arrol", "sim", "adapters") for path in ROOT.glob(f"{part}/**/*.py")
)
# What each part may not import: arrows point to the core.
FORBIDDEN = {
    "arrol": ("arrol.sim", "arrol.adapters"),
    "sim": ("arrol.adapters",),
    "adapters": ("arrol.sim",),
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_importing_the_core_imports_no_heavy_package():
    heavy = ["torch", "vllm", "verl", "sklearn", "pandas", "simpy", "matplotlib"]
    code = f"import arrol, sys; print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_command_can_be_listed_without_its_packages():
    heavy = ["torch", "vllm", "transformers", "sympy"]
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "names = [entry.load().name for entry in entry_points(group='arrol.commands')]\n"
        f"print(sorted(names), [name for name in {heavy} if name in sys.modules])"
    )
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['generate', 'replay', 'sim', 'vote'] []"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    forbidden = FORBIDDEN[path.relative_to(ROOT).parts[0]]
    wrong = [name for name in imports(path) if name.startswith(forbidden)]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_public_names_are_documented_and_files_are_short(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the module has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"
    assert text.count("\n") <= 420


def test_all_parts_are_found_from_a_clones_root():
    # There ./arrol comes first on the path, and it holds neither part.
    code = "import arrol.sim, arrol.adapters.vllm.command"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("place", ["adapters/verl", "adapters/verl/demo", "adapters/verl/recipes"])
def test_settings_beside_the_modules_are_shipped(place):
    spec = importlib.util.find_spec("arrol.adapters")
    shipped = Path(spec.origin).parents[1] / place
    wanted = {path.name for path in (ROOT / place).glob("*.yaml")}
    assert wanted
    assert wanted == {path.name for path in shipped.glob("*.yaml")}


def test_types_are_shipped():
    for package in ("arrol", "arrol.sim", "arrol.adapters"):
        spec = importlib.util.find_spec(package)
        assert (Path(spec.origin).parent / "py.typed").exists()
