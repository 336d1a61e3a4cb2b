"""Sections of the report, one module a tab or a part of one."""
