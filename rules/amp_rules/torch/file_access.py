"""What changes files, keeps them open, looks at them or reads them: by qualified name, or by method."""

from __future__ import annotations

from amp_rules.torch.writers import SAVERS

REMOVERS = frozenset(
    {
        "os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.rename", "os.renames", "os.replace", "shutil.move",
        "shutil.rmtree", "send2trash.send2trash",
    }
)  # fmt: skip
"""Calls that take a file or folder away from where it was."""

ENTERERS = frozenset({"os.chdir"})
"""Calls by which a process goes into another folder."""

CHANGERS = frozenset(
    {
        *SAVERS,
        *REMOVERS,
        "os.symlink", "os.link", "os.truncate", "os.mkfifo", "os.mknod", "os.chmod", "os.utime", "os.fsync",
        "os.system",
        "shutil.copytree", "shutil.copymode", "shutil.copystat", "shutil.make_archive", "shutil.unpack_archive",
        "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen", "subprocess.check_output",
        "subprocess.getoutput", "os.popen",
        "safetensors.torch.save_file", "safetensors.torch.save_model", "safetensors.numpy.save_file",
        "torchaudio.save", "torchvision.io.write_video", "torchvision.io.write_png", "torchvision.io.write_jpeg",
        "soundfile.write", "scipy.io.wavfile.write", "librosa.output.write_wav",
        "scipy.sparse.save_npz", "skimage.io.imsave", "tifffile.imwrite", "tifffile.imsave", "imageio.mimsave",
        "imageio.mimwrite", "imageio.v2.imwrite", "imageio.v3.imwrite", "imageio.v2.imsave", "imageio.v2.mimsave",
        "cv2.imwrite", "matplotlib.pyplot.imsave", "matplotlib.image.imsave", "plotly.io.write_image",
        "plotly.io.write_html", "nibabel.save", "SimpleITK.WriteImage", "open3d.io.write_point_cloud",
        "open3d.io.write_triangle_mesh", "faiss.write_index", "imageio.volwrite", "onnx.save", "onnx.save_model",
        "joblib.dump", "dill.dump", "cloudpickle.dump",
        "marshal.dump", "toml.dump", "yaml.safe_dump", "yaml.dump_all", "omegaconf.OmegaConf.save", "json.dump",
        "torch.save",
        "logging.basicConfig", "logging.config.fileConfig", "logging.config.dictConfig", "loguru.logger.add",
        "fcntl.flock", "fcntl.lockf", "msvcrt.locking", "prometheus_client.start_http_server",
        "wandb.save", "mlflow.start_run", "mlflow.end_run", "mlflow.log_metric", "mlflow.log_metrics",
        "mlflow.log_param", "mlflow.log_params", "mlflow.log_artifact", "mlflow.log_artifacts", "mlflow.log_text",
        "mlflow.log_figure", "mlflow.log_dict", "mlflow.set_tag", "mlflow.set_tags", "mlflow.set_experiment",
        "mlflow.pytorch.log_model", "mlflow.pytorch.save_model", "tensorboard_logger.configure",
        "tensorboard_logger.log_value", "tensorboard_logger.log_histogram", "tensorboard_logger.log_images",
        "swanlab.init", "swanlab.login", "swanlab.log", "swanlab.finish",
    }
)  # fmt: skip
"""Calls that are done with files, or with what one process owns, when they return."""

SETS_RIGHTS = frozenset({"os.chmod"})
"""Of these, what leaves a folder the same however many processes run it."""

COMMANDS = frozenset(
    {
        "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen", "subprocess.check_output",
        "subprocess.getoutput", "os.system", "os.popen",
    }
)  # fmt: skip
"""Calls that run a command, of which nothing says what files it makes."""

SENDS = frozenset(
    {f"{library}.{method}" for library in ("requests", "httpx") for method in ("post", "put", "patch", "delete")}
)
"""Calls that send something to a server, as a word to those who wait for the training; their answer may be needed."""

SENDING_METHODS = {
    "slack.WebClient": ("chat_postMessage", "files_upload"),
    "slack.web.client.WebClient": ("chat_postMessage", "files_upload"),
    "slack_sdk.WebClient": ("chat_postMessage", "files_upload", "files_upload_v2"),
    "slack_sdk.web.WebClient": ("chat_postMessage", "files_upload", "files_upload_v2"),
    "slack_sdk.webhook.WebhookClient": ("send", "send_dict"),
    "slackweb.Slack": ("notify",),
    "slackclient.SlackClient": ("api_call",),
    "discord_webhook.DiscordWebhook": ("execute",),
    "telegram.Bot": ("send_message", "sendMessage", "send_photo", "send_document"),
    "telegram.bot.Bot": ("send_message", "sendMessage", "send_photo", "send_document"),
    "telebot.TeleBot": ("send_message", "send_photo", "send_document"),
    "pushbullet.Pushbullet": ("push_note", "push_link", "push_file"),
}
"""What does so by methods of its own."""

WRITING_PROGRAMS = frozenset(
    {
        "ffmpeg", "avconv", "convert", "magick", "montage", "sox", "gifski", "mencoder", "zip", "unzip", "tar", "gzip",
        "gunzip", "bzip2", "xz", "7z", "cp", "mv", "rm", "mkdir", "rmdir", "ln", "touch", "rsync", "scp", "gsutil",
        "dvc", "pdflatex",
    }
)  # fmt: skip
"""Programs that make, move or remove files."""

TRAINS_INTO_FILES = frozenset(
    {
        "sentencepiece.SentencePieceTrainer.train", "sentencepiece.SentencePieceTrainer.Train",
        "youtokentome.BPE.train",
    }
)  # fmt: skip
"""Calls that train a vocabulary, and write it into files which are named after what they are told."""

SPLITS_COMMANDS = frozenset({"shlex.split", "builtins.str", "builtins.list"})
"""What gives a command as a list of its words."""

WHEN_ALONE = frozenset({*COMMANDS, "yaml.dump", "yaml.safe_dump", "toml.dump"})
"""Those whose results say that they were called for something else: a command's output, a text."""

COPIES = frozenset(
    {"copy", "copy2", "copyfile", "copy_file", "copy_parallel", "copytree", "upload", "upload_file", "upload_folder",
     "upload_blob", "put_file", "fput_object"}
)  # fmt: skip
"""Own names of libraries' functions that copy a file to where they are told, of which nothing more is known."""

MEMORY_MAKERS = (
    "io.BytesIO", "io.StringIO", "StringIO.StringIO", "cStringIO.StringIO", "six.BytesIO", "six.StringIO",
    "six.moves.StringIO", "six.moves.cStringIO", "tempfile.SpooledTemporaryFile",
)  # fmt: skip
"""Files that lie in the memory of a process."""

OPENERS = {
    "builtins.open": 1, "io.open": 1, "codecs.open": 1, "gzip.open": 1, "bz2.open": 1, "lzma.open": 1,
    "gzip.GzipFile": 1, "bz2.BZ2File": 1, "lzma.LZMAFile": 1, "zipfile.ZipFile": 1, "tarfile.open": 1,
    "tarfile.TarFile": 1, "h5py.File": 1, "numpy.lib.format.open_memmap": 1, "netCDF4.Dataset": 1,
    "pandas.HDFStore": 1, "aiofiles.open": 1, "smart_open.open": 1, "jsonlines.open": 1, "soundfile.SoundFile": 1,
    "numpy.memmap": 2,
}  # fmt: skip
"""What opens a file, with the position of its mode."""

TEXT_OPENERS = frozenset({"builtins.open", "io.open", "codecs.open"})
"""Those that read text where the mode says nothing else."""

PATH_KEYWORDS = (
    "file", "filename", "path", "name", "fname", "f", "fp", "dst", "src", "filepath_or_buffer", "path_or_buf", "fid",
)  # fmt: skip
"""Names of the arguments that say which file, where it is not the first one that stands there."""

READERS_OF_OPEN_FILES = frozenset(
    {
        "pickle.load", "pickle.Unpickler", "_pickle.load", "cPickle.load", "dill.load", "cloudpickle.load",
        "marshal.load", "json.load", "yaml.load", "yaml.safe_load", "yaml.full_load", "toml.load", "tomllib.load",
        "csv.reader", "csv.DictReader", "joblib.load", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "torch.load",
        "pandas.read_csv", "pandas.read_json", "pandas.read_pickle",
    }
)  # fmt: skip
"""What reads from the open file that it is given first."""

ARRAYS_IN_FILES = frozenset({"numpy.memmap", "numpy.lib.format.open_memmap"})
"""What opens a file as an array, which is read wherever it is used."""

LOCKED_WHILE_OPEN = frozenset({"h5py.File"})
"""What locks a file that it opens to be changed: another process that opens it meanwhile fails."""

ENDS_OF_COMMANDS = frozenset({"wait", "communicate"})
"""Methods of a command that runs which only wait for it."""

FILLS_FOLDERS = frozenset({"shutil.copytree", "shutil.unpack_archive"})
"""Calls that make a folder with files in it."""

SAVERS_OF_PRETRAINED = frozenset({"save_pretrained", "save_vocabulary", "to_json_file"})
"""Methods of transformers' models, tokenizers and settings that write what they are into a folder, or a file."""

FILLING_METHODS = frozenset({"extractall", "save_pretrained", "save_to_disk"})
"""Methods that do."""

ARCHIVES = frozenset({"zipfile.ZipFile", "tarfile.open", "tarfile.TarFile"})
"""What opens an archive, of which ``extract`` unpacks one file."""

UNPACKING = {"shutil.unpack_archive": (1, "extract_dir"), "extractall": (0, "path"), "extract": (1, "path")}
"""Calls and methods that unpack archives, with the argument that says where to; without it, the working folder."""

UNPACKING_COMMANDS = {"unzip": ("", " -d"), "tar": ("x", "-C"), "7z": ("x", "-o"), "unrar": ("x", "/ ")}
"""Programs that unpack archives: what their first word then holds, and what says that they do so elsewhere."""

WORKING_FOLDER = frozenset({"os.getcwd", "pathlib.Path.cwd"})
"""What gives the folder where the process runs."""

KEEPERS = frozenset(
    {
        "logging.FileHandler", "logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler",
        "logging.handlers.WatchedFileHandler", "logging.handlers.SocketHandler", "cv2.VideoWriter",
        "imageio.get_writer", "imageio.v2.get_writer", "matplotlib.backends.backend_pdf.PdfPages",
        "pandas.ExcelWriter", "xlsxwriter.Workbook", "http.server.HTTPServer", "http.server.ThreadingHTTPServer",
        "socketserver.TCPServer", "socketserver.ThreadingTCPServer", "smtplib.SMTP", "smtplib.SMTP_SSL", "yagmail.SMTP",
    }
)  # fmt: skip
"""Objects that keep a file, a port or a server of mail, for as long as they live; nothing is read from them."""

STORES = frozenset({"sqlite3.connect", "shelve.open", "dbm.open", "lmdb.open", "tinydb.TinyDB", "diskcache.Cache"})
"""What is written to and read from by one object: a database."""

STORE_CHANGES = frozenset(
    {
        "put", "putmulti", "delete", "drop", "replace", "insert", "insert_multiple", "upsert", "update", "remove",
        "truncate", "set", "add", "incr", "decr", "push", "memoize", "clear", "setdefault", "pop", "popitem", "sync",
        "commit", "executemany", "executescript",
    }
)  # fmt: skip
"""Methods of databases, their tables, transactions and cursors that change what is stored."""

STORE_STATEMENTS = ("insert", "update", "delete", "replace", "create", "drop", "alter")
"""How SQL begins that does."""

UPLOADS = frozenset(
    {"fput_object", "upload_file", "upload_fileobj", "upload_folder", "upload_from_file", "upload_from_filename"}
)
"""Methods that put a file where it is kept for others; here they read it."""

CHANGING_METHODS = frozenset(
    {
        "write_text", "write_bytes", "unlink", "touch", "symlink_to", "hardlink_to", "link_to", "rmdir", "savefig",
        "to_csv", "to_json", "to_excel", "to_pickle", "to_parquet", "to_hdf", "to_feather", "to_stata", "to_latex",
        *SAVERS_OF_PRETRAINED, "save_model", "save_weights", "save_to_disk", "write_image", "write_html",
        "write_videofile", "write_gif", "tofile", "save_word2vec_format", "push_to_hub", "extractall", "save",
        "export_chrome_trace", "export_stacks", "export_memory_timeline", *UPLOADS,
    }
)  # fmt: skip
"""Methods of libraries' objects that change files. Those of the second set do so only where they are given a path."""

WITH_A_PATH = frozenset(
    {"to_csv", "to_json", "to_latex", "savefig", "save", "save_model", "save_weights", "write_text", "write_bytes"}
)

EXPORTING_METHODS = frozenset({"export", "save_as", "to_file", "write", "write_file"})
"""Methods of objects of libraries that write a file where the path that they are given says which: ``"song.mid"``.

A method of one of these names does something else where it is given no path, or a stream's.
"""

PATH_METHODS = frozenset({"rename", "replace"})
"""Methods of a path that take a file away; of a text or a table they do something else."""

LOOKS = frozenset(
    {
        "os.path.exists", "os.path.lexists", "os.path.isfile", "os.path.isdir", "os.path.getmtime",
        "os.path.getctime", "os.path.getsize", "os.listdir", "os.scandir", "os.walk", "os.stat", "glob.glob",
        "glob.iglob",
    }
)  # fmt: skip
"""Calls that ask what files there are."""

LOOKS_OF_PATHS = frozenset({"exists", "is_dir", "is_file"})
"""Methods of a path that ask whether there is such a file."""

LISTS_FOLDERS = frozenset({"os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob"})
"""Of these, those that give the names of what is in a folder."""

PATTERNS = frozenset({"glob.glob", "glob.iglob"})
"""Those that are given a pattern of the files, and no folder."""

PORT_METHODS = frozenset({"bind", "listen"})
"""Methods of a socket that take a port, which one process can have."""

NEED_FOLDERS = frozenset({"os.listdir", "os.scandir"})
"""Calls that fail where the folder is not there; a ``glob`` finds nothing then."""

MAKES_FOLDERS = frozenset({"os.mkdir", "os.makedirs"})
"""Calls that make a folder, which may be there already."""

FOLDER_ERRORS = frozenset(
    {"FileExistsError", "OSError", "EnvironmentError", "IOError", "Exception", "BaseException", "error"}
)
"""Own names of what catches that a folder is there already; ``os.error`` is one."""

TELL_FAILURES = frozenset({"os.system", "subprocess.getoutput", "subprocess.getstatusoutput"})
"""Functions that give back whether a command failed, and raise nothing then."""

FOLDER_LOOKS = frozenset({"isdir", "exists", "is_dir"})
"""Own names of what tells whether a folder is there."""

FILE_ERRORS = frozenset(
    {
        *FOLDER_ERRORS, "FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError",
        "SameFileError", "Error",
    }
)  # fmt: skip
"""Own names of what catches that a file or folder is not as it should be; ``shutil.Error`` is one."""

LOOKING_METHODS = frozenset({"exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "stat"})
"""Methods of a path that do."""

LOADERS = frozenset(
    {
        "torch.load", "torch.jit.load", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile",
        "joblib.load", "pandas.read_csv", "pandas.read_json", "pandas.read_pickle", "pandas.read_parquet",
        "safetensors.torch.load_file", "safetensors.torch.load_model", "scipy.io.loadmat", "torchaudio.load",
        "PIL.Image.open", "cv2.imread", "imageio.imread", "sentencepiece.SentencePieceProcessor",
        "onnx.load", "onnx.load_model", "onnxruntime.InferenceSession", "cv2.dnn.readNetFromONNX", "cv2.dnn.readNet",
    }
)  # fmt: skip
"""Calls that read the file whose path they are given first."""

MEDIA_OF_RUNS = frozenset(
    {"wandb.Image", "wandb.Video", "wandb.Audio", "wandb.Object3D", "wandb.Html", "wandb.Molecule"}
)
"""What reads the file whose path it is given first, in a disabled run too, and takes what is no path as it is."""

FOLDER_LOADERS = frozenset({"torchvision.datasets.ImageFolder", "torchvision.datasets.folder.ImageFolder"})
"""Data sets that list the images below the folder which they are given first, when they are made."""

WEIGHT_LOADERS = frozenset({"torch.load"})
"""Of these, what reads the weights that ``torch.save`` has written."""

UNPICKLERS = WEIGHT_LOADERS | {
    "pickle.load", "pickle.loads", "_pickle.load", "cPickle.load", "dill.load", "dill.loads", "cloudpickle.load",
    "joblib.load", "torch.jit.load",
}  # fmt: skip
"""What gives objects of any kind, as a file holds them."""

IMAGE_LOADERS = frozenset({"PIL.Image.open", "cv2.imread", "imageio.imread"})
"""Of these, what reads images, which are most often what a script trains on."""

_WRITES_IMAGES = frozenset(
    {
        "torchvision.utils.save_image", "torchvision.utils.utils.save_image", "torchvision.io.write_png",
        "torchvision.io.write_jpeg", "matplotlib.pyplot.savefig", "matplotlib.pyplot.imsave", "matplotlib.image.imsave",
        "imageio.imwrite", "imageio.imsave", "imageio.v2.imwrite", "imageio.v3.imwrite", "imageio.v2.imsave",
        "cv2.imwrite", "scipy.misc.imsave", "skimage.io.imsave", "tifffile.imwrite", "tifffile.imsave", "savefig",
        "plotly.io.write_image", "write_image", "save",
    }
)  # fmt: skip

WRITERS_OF_READERS = {
    **dict.fromkeys(FOLDER_LOADERS, _WRITES_IMAGES),
    **dict.fromkeys(IMAGE_LOADERS, _WRITES_IMAGES),
    "torch.load": frozenset({"torch.save", "torch.jit.save", "pickle.dump", "save", "save_model", "save_weights",
                             "save_pretrained"}),
    "torch.jit.load": frozenset({"torch.jit.save", "save"}),
    "numpy.load": frozenset({"numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.memmap",
                             "numpy.lib.format.open_memmap"}),
    "numpy.loadtxt": frozenset({"numpy.savetxt", "write_text", "to_csv"}),
    "numpy.genfromtxt": frozenset({"numpy.savetxt", "write_text", "to_csv"}),
    "numpy.fromfile": frozenset({"tofile", "numpy.memmap"}),
    "joblib.load": frozenset({"joblib.dump"}),
    "pandas.read_csv": frozenset({"to_csv", "numpy.savetxt", "write_text"}),
    "pandas.read_json": frozenset({"to_json", "json.dump", "write_text"}),
    "pandas.read_pickle": frozenset({"to_pickle", "pickle.dump"}),
    "pandas.read_parquet": frozenset({"to_parquet"}),
    "safetensors.torch.load_file": frozenset({"safetensors.torch.save_file", "safetensors.torch.save_model"}),
    "safetensors.torch.load_model": frozenset({"safetensors.torch.save_file", "safetensors.torch.save_model"}),
    "scipy.io.loadmat": frozenset({"scipy.io.savemat"}),
    **dict.fromkeys(
        ("onnx.load", "onnx.load_model", "onnxruntime.InferenceSession", "cv2.dnn.readNetFromONNX", "cv2.dnn.readNet"),
        frozenset({"torch.onnx.export", "onnx.save", "onnx.save_model", "save", "export"}),
    ),
}  # fmt: skip
"""What writes files in the form that a call reads, by qualified name, or by method; open files can take any."""

MOVES = frozenset({"os.rename", "os.renames", "os.replace", "shutil.move"})
"""Removers that put the file elsewhere."""

WRITERS_OF_ANYTHING = frozenset({*OPENERS, *COMMANDS, *COPIES, "shutil.copy", "shutil.copyfile", "shutil.copy2",
                                 "shutil.copytree", "shutil.unpack_archive", "extractall", "os.symlink", "os.link",
                                 "symlink_to", "hardlink_to", "link_to"})  # fmt: skip
"""What makes files of any form."""

READING_METHODS = frozenset({"read_text", "read_bytes"})

TAKE_PATHS_AS_TEXTS = frozenset(
    {"builtins", "os", "pathlib", "argparse", "types", "collections", "functools", "re", "string", "logging", "copy",
     "time", "textwrap", "dataclasses", "typing", "warnings", "shlex", "fnmatch", "glob", "sys", "tempfile"}
)  # fmt: skip
"""Libraries whose functions take the text of a path, or hand it on, and read nothing of a file."""

FILE_READS = frozenset({"read", "readline", "readlines", "readinto", "getvalue", "fetchone", "fetchall", "namelist"})
"""Methods that read from what is open."""

TEMPORARY = frozenset(
    {
        "tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.mktemp", "tempfile.TemporaryDirectory",
        "tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile",
    }
)  # fmt: skip
"""Files and folders that each process gets for itself."""

OF_THIS_MOMENT = frozenset(
    {
        "time.time", "time.time_ns", "time.strftime", "time.ctime", "time.asctime", "time.localtime", "time.gmtime",
        "time.monotonic", "time.perf_counter", "datetime.datetime.now", "datetime.datetime.today",
        "datetime.datetime.utcnow", "datetime.date.today", "os.getpid", "uuid.uuid1", "uuid.uuid4",
    }
)  # fmt: skip
"""What each process gets for itself when it asks: the clock, its number, an identifier."""

OF_THIS_PROCESS = frozenset({"os.getpid", "uuid.uuid1", "uuid.uuid4"})
"""Of these, what is not the same on another process that asks at the same time."""
