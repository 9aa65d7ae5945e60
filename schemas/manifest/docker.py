"""The container of an instance with `runtime: docker`: its image, shared memory and volumes."""

import posixpath
import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator

from schemas.fields import SizeMibOrAuto, Strict, Text

# As in https://github.com/distribution/reference: [registry[:port]/]path[:tag][@digest].
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_IMAGE: Final = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
_MODE: Final = re.compile(r":(ro|rw)$")
_OF_THE_KERNEL: Final = ("/proc", "/sys")
MAX_VOLUMES: Final = 64


def image_text(value: str) -> str:
    """The image, if it can be one.

    Raises:
        ValueError: it is not a valid reference.
    """
    if _IMAGE.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is not a valid image; write a name in lower case with a tag or digest, "
            "such as vllm/vllm-openai:v0.28.0"
        )
    return value


Image = Annotated[Text, AfterValidator(image_text)]


class DockerOptions(Strict):
    """The container of each instance."""

    shm_size: SizeMibOrAuto = Field(
        "auto",
        description="Size of `/dev/shm`, through which the processes of one engine exchange data, such as `8GiB`. "
        "`auto`: what the engine needs for its GPUs, else Docker's default of 64 MiB.",
    )
    volumes: Annotated[dict[Text, Text], Field(max_length=MAX_VOLUMES)] = Field(
        {},
        description="Folders or files of the host by their places in the container, such as "
        "`{/srv/templates: /templates:ro}`. `:ro` makes one read-only. The model needs none: it is there "
        "at its own path.",
    )
    pull: Literal["missing", "always", "never"] = Field(
        "missing",
        description="When to pull the image. `missing`: if the host does not have it. `always`: at each start. "
        "`never`: an instance whose image is not on the host does not start.",
    )

    @field_validator("shm_size")
    @classmethod
    def _some_memory(cls, value: int | str) -> int | str:
        if value == 0:
            raise ValueError("must be more than 0; write a size such as 8GiB, or auto")
        return value

    @field_validator("volumes")
    @classmethod
    def _places(cls, value: dict[str, str]) -> dict[str, str]:
        taken: dict[str, str] = {}
        for source, written in value.items():
            if problem := _path_problem(source):
                raise ValueError(f"{source}: {problem}")
            target = target_of(written)
            if problem := _path_problem(target) or _target_problem(target):
                raise ValueError(f"{source}: the place in the container, {target!r}, {problem}")
            place = posixpath.normpath(target)
            if place in taken:
                raise ValueError(f"{source} and {taken[place]} both go to {place}; choose two places")
            taken[place] = source
        return value


def target_of(written: str) -> str:
    """The place in the container of a volume as written: without `:ro` or `:rw`."""
    return _MODE.sub("", written)


def _path_problem(path: str) -> str:
    if not path.startswith("/"):
        return "must be an absolute path, such as /srv/data"
    if not path.isprintable() or ":" in path:
        return "must have no ':' but that of :ro or :rw, and no control characters"
    if ".." in path.split("/"):
        return "contains '..'; write the path out"
    return ""


def _target_problem(target: str) -> str:
    place = posixpath.normpath(target)
    if place in ("/", "//"):
        return "would hide the whole image; choose a folder"
    if any(place == root or place.startswith(f"{root}/") for root in _OF_THE_KERNEL):
        return "belongs to the kernel; choose another folder"
    return ""
