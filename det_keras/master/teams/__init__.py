"""What the users of a master share: workspaces with their projects."""
