"""`doit help`: doit's own, which does not let a word pass that it has no help for."""

from doit.cmd_help import Help as DoitHelp

from rules.commands.command import AnyOrder


class Help(AnyOrder, DoitHelp):  # type: ignore[misc]
    """The commands; of one command, its options."""

    doc_usage = "[COMMAND|TASK]"
    needs_dodo = False

    def _execute(self, pos_args: list[str]) -> bool:
        from rules.commands import selection

        if super()._execute(pos_args):
            return True
        tasks = [task.name for task in self.task_list]
        raise selection.refused(pos_args, tasks, self.cmds, pos_args[0])
