"""The part of SARIF 2.1.0 that the commands write, as a JSON schema written after the standard's text.

The standard's own schema can be named in the environment variable ``SARIF_SCHEMA``; then the tests use it too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """An object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


STRING: dict[str, Any] = {"type": "string"}
ORDINAL: dict[str, Any] = {"type": "integer", "minimum": 1}
BAG: dict[str, Any] = {"type": "object"}
LEVEL: dict[str, Any] = {"enum": ["none", "note", "warning", "error"]}
MESSAGE = closed({"text": STRING, "markdown": STRING}, "text")
ARTIFACT = closed({"uri": {"type": "string", "pattern": "^[\\x21-\\x7e]+$"}, "uriBaseId": STRING}, "uri")
REGION = closed({"startLine": ORDINAL, "startColumn": ORDINAL, "endLine": ORDINAL, "endColumn": ORDINAL}, "startLine")
LOCATION = closed({"physicalLocation": closed({"artifactLocation": ARTIFACT, "region": REGION}, "artifactLocation")})
REPLACEMENT = closed({"deletedRegion": REGION, "insertedContent": closed({"text": STRING}, "text")}, "deletedRegion")
CHANGE = closed(
    {"artifactLocation": ARTIFACT, "replacements": listed(REPLACEMENT, minItems=1)}, "artifactLocation", "replacements"
)
RESULT = closed(
    {
        "ruleId": STRING,
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": LEVEL,
        "message": MESSAGE,
        "locations": listed(LOCATION),
        "partialFingerprints": {"type": "object", "additionalProperties": STRING},
        "fixes": listed(closed({"description": MESSAGE, "artifactChanges": listed(CHANGE, minItems=1)})),
        "properties": BAG,
    },
    "message",
    "ruleId",
    "locations",
)
RULE = closed(
    {
        "id": STRING,
        "name": STRING,
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MESSAGE,
        "defaultConfiguration": closed({"level": LEVEL}),
        "properties": BAG,
    },
    "id",
)
NOTIFICATION = closed({"level": LEVEL, "message": MESSAGE, "locations": listed(LOCATION)}, "message")
INVOCATION = closed(
    {"executionSuccessful": {"type": "boolean"}, "toolExecutionNotifications": listed(NOTIFICATION)},
    "executionSuccessful",
)
RUN = closed(
    {
        "tool": closed({"driver": closed({"name": STRING, "semanticVersion": STRING, "rules": listed(RULE)}, "name")}),
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "originalUriBaseIds": {"type": "object", "additionalProperties": ARTIFACT},
        "automationDetails": closed({"id": STRING}),
        "invocations": listed(INVOCATION),
        "results": listed(RESULT),
    },
    "tool",
    "results",
)
SARIF_SUBSET = closed({"$schema": STRING, "version": {"const": "2.1.0"}, "runs": listed(RUN)}, "version", "runs")


def check_sarif(text: str) -> Any:
    """Return the document after it was compared with the standard."""
    document = json.loads(text)
    jsonschema.Draft7Validator(SARIF_SUBSET).validate(document)
    # The standard's own schema is not ours to distribute.
    if path := os.environ.get("SARIF_SCHEMA"):
        jsonschema.Draft4Validator(json.loads(Path(path).read_text(encoding="utf-8"))).validate(document)
    return document
