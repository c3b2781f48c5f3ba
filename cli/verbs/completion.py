"""`topicctl completion`: the script that teaches a shell our verbs, options and topics."""

from __future__ import annotations

import click

from topicd.cli.app import App, pass_app, verb

EXAMPLES = """
topicctl completion bash > ~/.local/share/bash-completion/completions/topicctl
topicctl completion zsh > ~/.zfunc/_topicctl
topicctl completion fish > ~/.config/fish/completions/topicctl.fish
"""


@verb("completion", online=False, examples=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_app
def completion(app: App, shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    from topicd.cli.main import root_command

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    script = found(root_command(), {}, "topicctl", "_TOPICCTL_COMPLETE").source()
    if app.json:
        app.out.document({"shell": shell, "script": script})
    else:
        app.out.raw(script.encode() + b"\n")
