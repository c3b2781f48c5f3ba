/* What the files of the file channel share. The layout of a message is in messages.c. */
#ifndef TOPICD_CHANNEL_H
#define TOPICD_CHANNEL_H

#include "core.h"

/* Stores the value, then wakes those that sleep on the signal. (futex.c) */
void publish_word(uint64_t *value, uint64_t what, uint32_t *word);
/* An aligned place of `size` bytes inside the view; false with an exception set. (futex.c) */
bool take_place(PyObject *offset, const Py_buffer *view, uint64_t size, void **out);

#define CLEARED_PART 65536u /* so that its pages are one large page */
/* Zeros from start up to a boundary of parts behind `least`, or to `most`: where they end; 0: they cannot be written. The
 * kernel makes large pages of them, which costs less than small ones for each message or a fault for each. (window.c) */
uint64_t clear_room(int fd, uint64_t start, uint64_t least, uint64_t most);

/* Head and payload into a mapped file; 0, or an errno if a page of it cannot be had. (window.c) */
int store_message(uint8_t *place, const uint8_t *head, size_t head_bytes, const uint8_t *payload, size_t length);

#endif
