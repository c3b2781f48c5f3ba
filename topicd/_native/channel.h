/* What the files of the file channel share. The layout of a message is in messages.c. */
#ifndef TOPICD_CHANNEL_H
#define TOPICD_CHANNEL_H

#include "core.h"

/* Stores the value, then wakes those that sleep on the signal. (futex.c) */
void publish_word(uint64_t *value, uint64_t what, uint32_t *word);
/* An aligned place of `size` bytes inside the view; false with an exception set. (futex.c) */
bool take_place(PyObject *offset, const Py_buffer *view, uint64_t size, void **out);

/* Pages are made by writing zeros, a part at a time: the kernel makes one large page of it, which costs less than small
 * ones for each message or a fault for each. (window.c) */
#define CLEARED_PART 65536u
extern const uint8_t cleared_zeros[2 * CLEARED_PART];
/* Where the part ends that `least` lies in, or `most`. */
uint64_t cleared_end(uint64_t least, uint64_t most);
/* Zeros from start up to cleared_end: where they end; 0: they cannot be written. */
uint64_t clear_room(int fd, uint64_t start, uint64_t least, uint64_t most);

/* Head and payload into a mapped file; 0, or an errno if a page of it cannot be had. (window.c) */
int store_message(uint8_t *place, const uint8_t *head, size_t head_bytes, const uint8_t *payload, size_t length);

#endif
