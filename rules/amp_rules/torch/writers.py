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
        "tensorflow.summary.FileWriter",
        "tensorflow.compat.v1.summary.FileWriter",
        "tensorflow.train.SummaryWriter",
        "tensorflow.summary.create_file_writer",
        "tensorflow.compat.v2.summary.create_file_writer",
        "tensorboardX.SummaryWriter",
        "tensorboardX.writer.SummaryWriter",
        "tensorboard.FileWriter",
        "tensorboard.SummaryWriter",
        "visdom.Visdom",
        "tensorboard_logger.Logger",
        "comet_ml.Experiment",
        "comet_ml.start",
        "neptune.init_run",
        "neptune.init",
        "neptune.new.init_run",
        "neptune.new.init",
        "aim.Run",
        "aim.sdk.run.Run",
        "dvclive.Live",
        "dvclive.live.Live",
    }
)
"""Logging clients, of which one per run is wanted."""

DRAWN_BARS = frozenset(
    f"progress.bar.{name}"
    for name in (
        "Bar", "ChargingBar", "FillingCirclesBar", "FillingSquaresBar", "IncrementalBar", "PixelBar", "ShadyBar",
    )
)  # fmt: skip
"""Progress bars on standard error, of which none can be told not to show itself."""

WRITERS_WITHOUT_FOLDER = frozenset(
    {
        "visdom.Visdom",
        "comet_ml.Experiment",
        "comet_ml.start",
        "neptune.init_run",
        "neptune.init",
        "neptune.new.init_run",
        "neptune.new.init",
        "aim.Run",
        "aim.sdk.run.Run",
        "dvclive.Live",
        "dvclive.live.Live",
    }
)
"""Those that send what they are given to a server, or keep it in a folder of their own."""

WRITERS_OF_FOLDERS = frozenset(
    {
        "torch.utils.tensorboard.SummaryWriter",
        "torch.utils.tensorboard.writer.SummaryWriter",
        "tensorboardX.SummaryWriter",
    }
)
"""Those that make up a folder where they are given none."""

CLIENTS_TO_DERIVE_FROM = WRITERS_OF_FOLDERS | {"visdom.Visdom"}
"""Those that scripts put classes of their own around, for plots of one kind."""

FOLDERS_OF_WRITERS = frozenset({"log_dir", "logdir", "get_logdir"})
"""What tells the folder of a writer, which it makes up from the time and the host where it is given none."""

RUN_BEGUN = {"wandb.run": "wandb.init"}
"""What is None in a process that has begun no run of a client, each with the call that begins one."""

RUNS = frozenset({"wandb.init"})
"""Calls that begin a run of a tracking service. ``mode="disabled"`` makes one of which all calls do nothing."""

RUN_LOGS = frozenset(
    {"wandb.log", "wandb.watch", "wandb.save", "wandb.alert", "wandb.define_metric", "wandb.log_artifact"}
)
"""Calls that write to the run of a process, and raise an error where none was begun."""

RUNS_OF_EACH = frozenset(
    {
        "mlflow.start_run", "mlflow.tracking.fluent.start_run", "clearml.Task.init", "clearml.task.Task.init",
        "trains.Task.init", "swanlab.init",
    }
)  # fmt: skip
"""Calls that begin a run of another such service: what comes of them may be used in more ways than to log."""

RUN_INPUTS = frozenset({"use_artifact", "use_model", "restore", "agent", "sweep"})
"""Functions of the service, and methods of its runs, that bring something in: a disabled run has none of it."""

MODEL_WRITERS = {
    "torch.save": 1, "torch.jit.save": 1, "torch.onnx.export": 2, "numpy.save": 0, "numpy.savez": 0,
    "joblib.dump": 1, "safetensors.torch.save_file": 1, "safetensors.torch.save_model": 1,
}  # fmt: skip
"""Those that write models and arrays, with the position of the path among their arguments."""

WHOLE_OBJECT_WRITERS = frozenset(
    {"torch.save", "pickle.dump", "pickle.dumps", "joblib.dump", "dill.dump", "cloudpickle.dump"}
)
"""Those that write an object with its classes, a model too."""

HANDED_TO_PROCESSES = frozenset(
    {"multiprocessing.Process", "torch.multiprocessing.Process", "torch.multiprocessing.spawn", "torch.jit.save"}
)
"""Those that give what they get to another process, or write it for one."""

FILE_WRITERS = {
    **MODEL_WRITERS, "numpy.savez_compressed": 0, "numpy.savetxt": 0, "torchvision.utils.save_image": 1,
    "torchvision.utils.utils.save_image": 1, "matplotlib.pyplot.savefig": 0, "imageio.imwrite": 0,
    "imageio.imsave": 0, "cv2.imwrite": 0, "scipy.io.savemat": 0, "torchaudio.save": 0, "shutil.copyfile": 1,
    "shutil.copy": 1, "shutil.copy2": 1, "omegaconf.OmegaConf.save": 1, "torchvision.io.write_video": 0,
    "torchvision.io.write_png": 1, "torchvision.io.write_jpeg": 1, "safetensors.numpy.save_file": 1,
}  # fmt: skip
"""Calls that write a file when they are told its path, with the position of that among their arguments."""

PATH_WRITERS = frozenset({"savefig", "to_csv", "to_pickle", "to_parquet", "to_excel", "write_text", "write_bytes"})
"""Methods of figures, tables and paths that do."""

LOG_KEEPERS = frozenset(
    {
        "logging.FileHandler", "logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler",
        "wandb.init", "torch.utils.tensorboard.SummaryWriter", "tensorboardX.SummaryWriter",
    }
)  # fmt: skip
"""What keeps the record of a run, of which one is wanted."""

LIBRARY_SAVERS = {
    "timm.utils.CheckpointSaver": "keeps the last checkpoints and removes older ones",
    "timm.utils.checkpoint_saver.CheckpointSaver": "keeps the last checkpoints and removes older ones",
    "timm.utils.update_summary": "appends to a file",
    "timm.utils.summary.update_summary": "appends to a file",
}
"""Libraries' writers of files that nobody names in the call, and what they do."""

NAMED_LOGS = frozenset({"logging.basicConfig"})
"""What opens one where it is given a file by name: ``filename="train.log"``."""

HISTOGRAMS = frozenset(
    {
        "numpy.histogram", "matplotlib.pyplot.hist", "torch.histc", "torch.histogram", "wandb.Histogram",
        "torch.utils.tensorboard.SummaryWriter.add_histogram", "tensorboardX.SummaryWriter.add_histogram",
    }
)  # fmt: skip
"""Calls that refuse numbers that are all infinite or NaN, and some of them a single one."""
