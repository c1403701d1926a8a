"""What writes files, shows windows or logs."""

from __future__ import annotations

SAVERS = frozenset(
    {
        "torch.save",
        "torchvision.utils.save_image",
        "torchvision.utils.utils.save_image",
        "torch.jit.save",
        "torch.onnx.export",
        "numpy.save",
        "numpy.savez",
        "numpy.savez_compressed",
        "numpy.savetxt",
        "pickle.dump",
        "json.dump",
        "yaml.dump",
        "joblib.dump",
        "shutil.copy",
        "shutil.copyfile",
        "shutil.copy2",
        "matplotlib.pyplot.savefig",
        "matplotlib.pyplot.show",
        "matplotlib.pyplot.pause",
        "imageio.imwrite",
        "imageio.imsave",
        "cv2.imwrite",
        "scipy.io.savemat",
        "scipy.misc.imsave",
    }
)
"""Calls that write a file or show a window: with several processes only one may."""

WRITERS = frozenset(
    {
        "torch.utils.tensorboard.SummaryWriter",
        "torch.utils.tensorboard.writer.SummaryWriter",
        "tensorboardX.SummaryWriter",
        "visdom.Visdom",
        "tensorboard_logger.Logger",
    }
)
"""Logging clients, of which one per run is wanted."""

MODEL_WRITERS = {
    "torch.save": 1, "torch.jit.save": 1, "torch.onnx.export": 2, "numpy.save": 0, "numpy.savez": 0,
    "joblib.dump": 1, "safetensors.torch.save_file": 1, "safetensors.torch.save_model": 1,
}  # fmt: skip
"""Those that write models and arrays, with the position of the path among their arguments."""

WHOLE_OBJECT_WRITERS = frozenset(
    {"torch.save", "pickle.dump", "pickle.dumps", "joblib.dump", "dill.dump", "cloudpickle.dump"}
)
"""Those that write an object with its classes, a model too."""
