#!/usr/bin/env python3
"""Makes the part of a macOS SDK that a linker needs to check a program's symbols, without anything of Apple's.

    stub_sdk.py SDK LIBSYSTEM.tbd

writes text stubs of libraries to the folder SDK. libSystem's is Zig's list of its symbols, given as LIBSYSTEM.tbd. A
framework has the symbols that the crates declare which link to it; so a program that links has every symbol from a
declaration in the bindings, but nothing shows that Apple's frameworks have it too.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TARGET = "aarch64-apple-darwin"

LINK = re.compile(r'name\s*=\s*"(\w+)",\s*kind\s*=\s*"framework"')
BLOCK = re.compile(r'(?:extern_c(?:_unwind)?!|extern\s+"C(?:-unwind)?")\s*\{(.*?)\n\s*\}', re.DOTALL)
ITEM = re.compile(r'link_name\s*=\s*"(?P<name>[^"]+)"|\bfn\s+(?P<function>\w+)\s*[(<]|\bstatic\s+(?:mut\s+)?(?P<value>\w+)\s*:')

# Of libobjc: what the compiler and the objc2 crates refer to in ways other than an extern block.
OBJC = """_objc_alloc _objc_alloc_init _objc_claimAutoreleasedReturnValue _objc_msgSend _objc_msgSendSuper _objc_msgSendSuper2
    _objc_opt_class _objc_retainAutoreleasedReturnValue _OBJC_EHTYPE_id ___objc_personality_v0 __objc_empty_cache""".split()
# The class of constant strings, which objc2-foundation names without declaring it.
CORE_FOUNDATION = ["___CFConstantStringClassReference"]
ICONV = ["_iconv", "_iconv_open", "_iconv_close"]


def declared(source: Path) -> set[str]:
    """The C symbols that a crate's extern blocks declare."""
    symbols = set()
    for file in source.rglob("*.rs"):
        for block in BLOCK.finditer(file.read_text()):
            symbols |= {"_" + next(filter(None, item.groups())) for item in ITEM.finditer(block[1])}
    return symbols


def stub(path: Path, install_name: str, symbols: set[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(f"'{symbol}'" for symbol in sorted(symbols))
    path.write_text(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
        f"install-name: '{install_name}'\nexports:\n  - targets: [ arm64-macos ]\n    symbols: [ {listed} ]\n...\n"
    )


def main(sdk: Path, system: Path) -> None:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    packages = json.loads(subprocess.check_output(command))["packages"]

    frameworks: dict[str, set[str]] = {"CoreFoundation": set(CORE_FOUNDATION)}
    objc = set(OBJC)
    for package in packages:
        source = Path(package["manifest_path"]).parent / "src"
        if not source.is_dir():
            continue
        if package["name"] == "objc2":
            objc |= declared(source)
        linked = {name for file in source.rglob("*.rs") for name in LINK.findall(file.read_text())}
        for framework in linked:
            frameworks.setdefault(framework, set()).update(declared(source))

    for name, symbols in frameworks.items():
        folder = f"System/Library/Frameworks/{name}.framework"
        stub(sdk / folder / f"{name}.tbd", f"/{folder}/{name}", symbols)
    stub(sdk / "usr/lib/libobjc.tbd", "/usr/lib/libobjc.A.dylib", objc)
    stub(sdk / "usr/lib/libiconv.tbd", "/usr/lib/libiconv.2.dylib", set(ICONV))
    # The linker doesn't know the newest names of architectures in Zig's list.
    listed = re.sub(r"arm64e\.x1-(macos|maccatalyst)", r"arm64-\1", system.read_text())
    for name in ("System", "c", "m", "pthread", "dl"):
        (sdk / f"usr/lib/lib{name}.tbd").write_text(listed)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
