"""Make PyPI's CUDA-built torchvision and torchaudio importable beside a CPU-only torch.

Their wheels link CUDA libraries that a CPU torch does not bring, so their native extensions cannot
load. What Rollwright needs of them (torchvision's transforms, used by transformers' image
processors; torchaudio's mere importability, demanded by LLaMA-Factory) is pure Python; only two
things stand in the way, and each is put in place just before the package's own ``__init__`` runs:

* torchvision registers fake kernels for ``torchvision::nms`` and ``qnms``, whose schemas the
  unloadable extension would define;
* torchaudio loads its extension in ``torchaudio._extension``, for which an "extension not
  available" module stands in.

``scripts/setup`` copies this file into the environment's site-packages with a ``.pth`` line that
imports it, so that every process (torchrun ranks, Dask workers) has it. It imports torch only when
one of the two packages is imported, and does nothing beside a CUDA build of torch.
"""

import importlib.abc
import importlib.machinery
import sys
import types


def _define_torchvision_schemas():
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _stand_in_for_torchaudio_extension():
    extension = types.ModuleType("torchaudio._extension")
    extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
    extension._IS_ALIGN_AVAILABLE = False
    extension._check_cuda_version = lambda: None
    extension.fail_if_no_align = lambda function: function
    sys.modules["torchaudio._extension"] = extension


_PREPARE = {"torchvision": _define_torchvision_schemas, "torchaudio": _stand_in_for_torchaudio_extension}


class _PreparingLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            _PREPARE[module.__name__]()
        super().exec_module(module)


class _PreparingFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _PREPARE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _PreparingLoader(spec.loader.name, spec.loader.path)
        return spec


if not any(isinstance(finder, _PreparingFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _PreparingFinder())
