/* Whose children orphans become. Contract: interface.KeepOrphans. */
#include "core.h"
#include <sys/prctl.h>

/* keep_orphans() */
CORE_FUNCTION(core_keep_orphans)
{
    (void)module;
    (void)args;
    if (!take_count("keep_orphans", nargs, 0))
        return NULL;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}
