package harness

// SiteCustomize is a Python module that cures the launcher of PyTorch 1.13, Debian 12's, on Python 3.11, where iterating
// over a flag enumeration leaves out the zero: its workers end before they begin. It is found under the name
// sitecustomize.py in a directory of PYTHONPATH, and acts where Python runs torch.distributed.run.
const SiteCustomize = `
import sys
def cure():
    from torch.distributed.elastic.multiprocessing.api import Std
    found = Std.from_str
    Std.from_str = classmethod(lambda cls, vm: cls(int(vm)) if vm.isdigit() else found(vm))
if "torch.distributed.run" in sys.orig_argv: cure()
`
