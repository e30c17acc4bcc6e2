/* A streamed answer: chunks that are like one that was read, but for their text. */

#include "scan.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define MAX_SIZE_DIGITS 8

/* The payload of a whole chunk at `at`, of which the first line says nothing but a size; NULL for any other. */
static place read_chunk(place at, place end, Py_ssize_t *size)
{
    int digits = 0;
    Py_ssize_t found = 0;
    while (at < end && digits < MAX_SIZE_DIGITS) {
        unsigned char byte = *at;
        if (byte >= '0' && byte <= '9')
            found = found << 4 | (byte - '0');
        else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f')
            found = found << 4 | ((byte | 0x20) - 'a' + 10);
        else
            break;
        digits++;
        at++;
    }
    if (!digits || end - at < 2 || at[0] != '\r' || at[1] != '\n')
        return NULL;
    at += 2;
    if (found > end - at - 2 || at[found] != '\r' || at[found + 1] != '\n')
        return NULL;
    *size = found;
    return at;
}

/* What walk goes over. */
struct walk {
    place at, end;
    const char *before, *after;
    Py_ssize_t before_size, after_size;
};

/* From a chunk at `at` on, with what bytes say of what stands around its text. */
static struct walk walk_from(place at, place end, PyObject *before, PyObject *after)
{
    return (struct walk){
        .at = at,
        .end = end,
        .before = PyBytes_AS_STRING(before),
        .after = PyBytes_AS_STRING(after),
        .before_size = PyBytes_GET_SIZE(before),
        .after_size = PyBytes_GET_SIZE(after),
    };
}

/* The text in a chunk's payload where that is like the last one but for it; NULL where it is not. */
static place find_text(const struct walk *walk, place payload, Py_ssize_t size, place *stop)
{
    unsigned holds = 0;
    place text = payload + walk->before_size;
    if (!walk->before_size || size < walk->before_size + walk->after_size)
        return NULL;
    *stop = payload + size - walk->after_size;
    if (memcmp(payload, walk->before, (size_t)walk->before_size) != 0)
        return NULL;
    if (memcmp(*stop, walk->after, (size_t)walk->after_size) != 0)
        return NULL;
    /* To the quote that `after` begins with, and no nearer one. */
    return find_string_end(text, *stop + 1, &holds) == *stop && !(holds & OTHER_ESCAPES) ? text : NULL;
}

/* Whether a chunk's payload is one event, of one line of data. */
static bool is_event(place payload, Py_ssize_t size)
{
    return size >= 8 && memcmp(payload, "data: ", 6) == 0 && memcmp(payload + size - 2, "\n\n", 2) == 0 &&
           !memchr(payload + 6, '\n', (size_t)size - 8);
}

/* (position, texts, start, stop); takes `texts` over. */
static PyObject *make_answer(Py_ssize_t position, PyObject *texts, Py_ssize_t start, Py_ssize_t stop)
{
    PyObject *answer = PyTuple_New(4);
    if (!answer) {
        Py_DECREF(texts);
        return NULL;
    }
    PyTuple_SET_ITEM(answer, 0, PyLong_FromSsize_t(position));
    PyTuple_SET_ITEM(answer, 1, texts);
    PyTuple_SET_ITEM(answer, 2, PyLong_FromSsize_t(start));
    PyTuple_SET_ITEM(answer, 3, PyLong_FromSsize_t(stop));
    for (int i = 0; i < 4; i++) {
        if (!PyTuple_GET_ITEM(answer, i)) {
            Py_DECREF(answer);
            return NULL;
        }
    }
    return answer;
}

/* Goes over the chunks that are like the last one; makes bytes of their texts, and says what the next one is, as
 * read_chunk does. False: no memory. */
static bool pass_over(struct walk *walk, PyObject **texts, place *payload, Py_ssize_t *size)
{
    place text, stop;
    Py_ssize_t length = 0;
    *texts = NULL;
    for (;;) {
        *payload = read_chunk(walk->at, walk->end, size);
        text = *payload ? find_text(walk, *payload, *size, &stop) : NULL;
        if (!text)
            break;
        if (!*texts) {
            *texts = PyBytes_FromStringAndSize(NULL, walk->end - text);
            if (!*texts)
                return false;
        }
        memcpy(PyBytes_AS_STRING(*texts) + length, text, (size_t)(stop - text));
        length += stop - text;
        walk->at = *payload + *size + 2;
    }
    if (!*texts)
        *texts = PyBytes_FromStringAndSize(NULL, 0);
    else
        _PyBytes_Resize(texts, length);
    return *texts != NULL;
}

/* Takes bytes, where in them a chunk begins, and what stands in a chunk's payload before and after its text, of which
 * the latter begins with the quote that ends the text; both empty where none is known. Returns where the first chunk
 * begins that is not such a one, and the texts of those before it, as they stand in JSON, without escapes that need not
 * be; then from where to where the data of that chunk's event goes, where it is whole and one event of one line of
 * data; else -1 twice. */
PyObject *walk(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct walk walk;
    PyObject *texts = NULL;
    place start, payload;
    Py_ssize_t position, size = 0;
    (void)module;
    if (count != 4 || !PyBytes_Check(arguments[0]) || !PyBytes_Check(arguments[2]) || !PyBytes_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "walk takes bytes, an offset, and bytes twice");
        return NULL;
    }
    position = PyLong_AsSsize_t(arguments[1]);
    if (position == -1 && PyErr_Occurred())
        return NULL;
    start = (place)PyBytes_AS_STRING(arguments[0]);
    walk = walk_from(start, start + PyBytes_GET_SIZE(arguments[0]), arguments[2], arguments[3]);
    if (position < 0 || position > walk.end - start || (walk.before_size && *walk.after != '"')) {
        PyErr_SetString(PyExc_ValueError, "not within the bytes, or no quote");
        return NULL;
    }
    walk.at += position;
    if (!pass_over(&walk, &texts, &payload, &size))
        return NULL;
    position = walk.at - start;
    if (payload && is_event(payload, size))
        return make_answer(position, texts, payload + 6 - start, payload + size - 2 - start);
    return make_answer(position, texts, -1, -1);
}

/* Whole chunks that are like one that was read go by here, and nothing else. `before`, `after`: as walk takes them,
 * not empty. */
struct lane {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *before, *after, *texts, *write;
};

/* Takes bytes. True: they were such chunks, each text has been appended to `texts`, and they have been written. */
static PyObject *lane_call(PyObject *self, PyObject *const *arguments, size_t count, PyObject *names)
{
    struct lane *lane = (struct lane *)self;
    struct walk walk;
    PyObject *texts, *written;
    place data, payload;
    Py_ssize_t size = 0, data_size;
    int put;
    if (PyVectorcall_NARGS(count) != 1 || names || !PyBytes_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "a lane takes bytes");
        return NULL;
    }
    data = (place)PyBytes_AS_STRING(arguments[0]);
    data_size = PyBytes_GET_SIZE(arguments[0]);
    walk = walk_from(data, data + data_size, lane->before, lane->after);
    /* Most of what does not go by here is told by its end, before any of it has been read. */
    if (data_size < walk.after_size + 2 ||
        memcmp(walk.end - 2 - walk.after_size, walk.after, (size_t)walk.after_size) != 0)
        Py_RETURN_FALSE;
    if (!pass_over(&walk, &texts, &payload, &size))
        return NULL;
    if (walk.at != walk.end) {
        Py_DECREF(texts);
        Py_RETURN_FALSE;
    }
    put = PyList_Append(lane->texts, texts);
    Py_DECREF(texts);
    if (put < 0)
        return NULL;
    written = PyObject_CallOneArg(lane->write, arguments[0]);
    if (!written)
        return NULL;
    Py_DECREF(written);
    Py_RETURN_TRUE;
}

static int lane_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct lane *lane = (struct lane *)self;
    Py_VISIT(lane->texts);
    Py_VISIT(lane->write);
    return 0;
}

static int lane_clear(PyObject *self)
{
    struct lane *lane = (struct lane *)self;
    Py_CLEAR(lane->before);
    Py_CLEAR(lane->after);
    Py_CLEAR(lane->texts);
    Py_CLEAR(lane->write);
    return 0;
}

static void lane_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    lane_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *lane_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    PyObject *before, *after, *texts, *write;
    struct lane *lane;
    if (names || !PyArg_ParseTuple(arguments, "SSO!O:Lane", &before, &after, &PyList_Type, &texts, &write))
        return NULL;
    if (!PyBytes_GET_SIZE(before) || *PyBytes_AS_STRING(after) != '"') {
        PyErr_SetString(PyExc_ValueError, "nothing before the text, or no quote after it");
        return NULL;
    }
    lane = (struct lane *)type->tp_alloc(type, 0);
    if (!lane)
        return NULL;
    lane->call = lane_call;
    lane->before = Py_NewRef(before);
    lane->after = Py_NewRef(after);
    lane->texts = Py_NewRef(texts);
    lane->write = Py_NewRef(write);
    return (PyObject *)lane;
}

PyTypeObject LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "duplex_router.wire._scan.Lane",
    .tp_doc = PyDoc_STR("Passes on chunks that are like the last one."),
    .tp_basicsize = sizeof(struct lane),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(struct lane, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = lane_new,
    .tp_traverse = lane_traverse,
    .tp_clear = lane_clear,
    .tp_dealloc = lane_dealloc,
};
