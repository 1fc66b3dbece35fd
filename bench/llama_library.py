"""llama.cpp's libraries out of the npm package @node-llama-cpp/linux-x64, for the scripts that measure beside it."""
import hashlib, io, os, sys, tarfile, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = "3.22.1"
PACKAGE = f"https://registry.npmjs.org/@node-llama-cpp/linux-x64/-/linux-x64-{VERSION}.tgz"
SHA256 = "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"


def library(folder):
    """The folder of llama.cpp's libraries."""
    if folder:
        return folder
    folder = os.path.join(ROOT, "target", "llama")
    if not os.path.isdir(folder):
        with urllib.request.urlopen(PACKAGE) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != SHA256:
            sys.exit(f"{PACKAGE}: sha256 differs from the one recorded")
        packed = tarfile.open(fileobj=io.BytesIO(content))
        os.makedirs(folder + ".part", exist_ok=True)
        for member in packed:
            if member.name.endswith(".so"):
                member.name = os.path.basename(member.name)
                packed.extract(member, folder + ".part", filter="data")
        os.rename(folder + ".part", folder)
    return folder
