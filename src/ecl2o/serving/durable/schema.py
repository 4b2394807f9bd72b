"""The tables of a store. Steps are only ever appended; a stream's row holds the state that follows from its last one."""

import sqlalchemy as sa

VERSION = 3  # of these tables, and of how a state is laid out in its bytes

tables = sa.MetaData()

about = sa.Table(
    "ecl2o_store", tables, sa.Column("version", sa.Integer, primary_key=True), sa.Column("probed", sa.Double)
)

room = sa.Table(
    "ecl2o_room", tables, sa.Column("key", sa.Integer, primary_key=True), sa.Column("bytes", sa.LargeBinary)
)  # empty but for the moment in which it is seen whether there is room

policies = sa.Table(
    "policies",
    tables,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("file", sa.LargeBinary, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)

streams = sa.Table(
    "streams",
    tables,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.String(128), nullable=False, unique=True),
    sa.Column("policy", sa.String(128), sa.ForeignKey("policies.name"), nullable=False, index=True),
    sa.Column("x0", sa.Text, nullable=False),
    sa.Column("asked", sa.String(64), nullable=False),  # hash of the request that made it; compared if it comes again
    sa.Column("seen", sa.Integer, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
    sa.Column("touched", sa.Double, nullable=False),  # the time of its last step, or of its making
    sa.Column("last", sa.Text),  # the last step as JSON, with its context and its time
    sa.Column("live_ratio", sa.Double),
    sa.Column("promise_left", sa.Double),
    sqlite_autoincrement=True,  # a key is never used again, so that what is remembered of a deleted stream fits no new one
)

steps = sa.Table(
    "steps",
    tables,
    sa.Column("stream", sa.Integer, sa.ForeignKey("streams.key", ondelete="CASCADE"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),  # seconds since 1970; steps are ordered by their number, never by this
    sa.Column("context", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("hitting", sa.Double, nullable=False),
    sa.Column("switching", sa.Double, nullable=False),
    sa.Column("cost", sa.Double, nullable=False),
    sa.Column("optimum", sa.Double),
    sa.Column("expert", sa.Double),
    sa.Column("live_ratio", sa.Double),
    sa.Column("promise_left", sa.Double),
    sa.Column("guard_active", sa.Boolean),
    sa.Column("used", sa.Text),  # the context that stood in for one that was not believed
    sa.Column("unconverged", sa.Boolean),  # null in steps of older services, which did not write it
    sqlite_with_rowid=False,
)
