/* What takes a loop away. Contract: interface.Guard.
 *
 * Python hides the exception that is under way from __del__; a destructor in C sees it. A loop that owns a guard hears
 * so whether it ended by itself or was left by an exception.
 */
#include "core.h"

#define NAME "topicd.guard"

static void gone(PyObject *capsule)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (type)
        PyErr_NormalizeException(&type, &error, &trace);
    PyObject *call = PyCapsule_GetPointer(capsule, NAME);
    if (call) {
        PyObject *answer = PyObject_CallFunctionObjArgs(call, error ? error : Py_None, Py_True, NULL);
        if (!answer)
            PyErr_WriteUnraisable(call);
        Py_XDECREF(answer);
        Py_DECREF(call);
    }
    PyErr_Restore(type, error, trace);
}

CORE_FUNCTION(core_guard)
{
    (void)module;
    if (nargs != 1 || !PyCallable_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "guard takes one function");
        return NULL;
    }
    Py_INCREF(args[0]);
    PyObject *capsule = PyCapsule_New(args[0], NAME, gone);
    if (!capsule)
        Py_DECREF(args[0]);
    return capsule;
}
