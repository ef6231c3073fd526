/* S3 over RDMA from host memory: libernic_s3. Made by cbindgen from client/capi/src/lib.rs. */

#ifndef ERNIC_S3_H
#define ERNIC_S3_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// What a call came to. `ernic_last_error` says it in words.
typedef enum ErnicStatus {
  // It is done.
  ERNIC_STATUS_OK = 0,
  // An argument is NULL, no UTF-8, or out of its range, or the buffer is not of this session.
  ERNIC_STATUS_INVALID_ARGUMENT = 1,
  // There are no verbs on this platform.
  ERNIC_STATUS_UNSUPPORTED = 2,
  // No RDMA device that can be used, or no memory.
  ERNIC_STATUS_MEMORY = 3,
  // The session, the buffer or the upload is in use by another thread.
  ERNIC_STATUS_BUSY = 4,
  // No connection was made.
  ERNIC_STATUS_CONNECT = 5,
  // The connection broke, or nothing came in time.
  ERNIC_STATUS_BROKEN = 6,
  // The answer is not one of S3.
  ERNIC_STATUS_BAD_ANSWER = 7,
  // The server said no. `ernic_last_http_status` has the HTTP status.
  ERNIC_STATUS_REFUSED = 8,
  // The answer contradicts itself or the request: nothing is known about the bytes.
  ERNIC_STATUS_VIOLATION = 9,
  // The object is longer than the buffer.
  ERNIC_STATUS_TOO_LONG = 10,
  // A fault of the library.
  ERNIC_STATUS_INTERNAL = 11,
} ErnicStatus;

// What carried the bytes.
typedef enum ErnicCarrier {
  // The body of an HTTP message.
  ERNIC_CARRIER_HTTP = 0,
  // RDMA.
  ERNIC_CARRIER_RDMA = 1,
} ErnicCarrier;

// How bytes go by RDMA.
typedef enum ErnicProtocol {
  // Not at all: a transfer that went by HTTP.
  ERNIC_PROTOCOL_NONE = 0,
  // A token in the S3 request.
  ERNIC_PROTOCOL_TOKEN = 1,
  // hipobj-rc-v2: a connection for each transfer.
  ERNIC_PROTOCOL_RC_V2 = 2,
  // hipobj-rc-v2 if the server speaks it, and tokens if not. No transfer says that it went so.
  ERNIC_PROTOCOL_AUTO = 3,
} ErnicProtocol;

// Why a transfer that asked for RDMA went by HTTP.
typedef enum ErnicSignal {
  // It did not: it went by RDMA, or there is no device.
  ERNIC_SIGNAL_NONE = 0,
  // The server declined.
  ERNIC_SIGNAL_DECLINED = 1,
  // The transfer started and failed.
  ERNIC_SIGNAL_FAILED = 2,
  // An error of S3 without a reply.
  ERNIC_SIGNAL_NO_REPLY = 3,
} ErnicSignal;

// Memory of a session, registered until it is freed.
typedef struct ErnicBuffer ErnicBuffer;

// A connection to a server. Used by one thread at a time; a call while another thread's is under way is `ERNIC_STATUS_BUSY`.
typedef struct ErnicSession ErnicSession;

// A multipart upload.
typedef struct ErnicUpload ErnicUpload;

// A transfer that was made.
typedef struct ErnicTransfer {
  // Bytes that moved.
  uint64_t bytes;
  // What carried them.
  enum ErnicCarrier carrier;
  // By which protocol.
  enum ErnicProtocol protocol;
  // Why that was not RDMA.
  enum ErnicSignal fell_back;
  // ETag of the object or part, with a zero at its end.
  char etag[128];
} ErnicTransfer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of this thread's last failure; empty if there was none. Good until this thread's next failure.
const char *ernic_last_error(void);

// The HTTP status of this thread's last failure, if that was `ERNIC_STATUS_REFUSED`; 0 otherwise.
uint16_t ernic_last_http_status(void);

// Whether this machine has an RDMA device that can be used. If not, the status and `ernic_last_error` say why.
enum ErnicStatus ernic_rdma_available(void);

// Opens a session.
//
// `endpoint` is `http://HOST[:PORT]`. `access`, `secret` and `region` sign requests; all three are NULL for none. `device` is the
// name of an RDMA device, empty for the first that there is, or NULL for none: then everything goes by HTTP. `size` is the
// size of each of its buffers, 1 byte to 1 GiB.
//
// # Safety
// Strings are C strings or NULL; `session` is a place for the handle, to be given to `ernic_session_close` in the end.
enum ErnicStatus ernic_session_new(const char *endpoint,
                                   const char *access,
                                   const char *secret,
                                   const char *region,
                                   const char *device,
                                   uint64_t size,
                                   struct ErnicSession **session);

// Ends a session; NULL is fine. Its buffers stay registered until they are freed.
//
// # Safety
// A handle that is in nobody's use, or NULL.
void ernic_session_close(struct ErnicSession *session);

// Chooses how the session asks for RDMA from the next transfer on: `ERNIC_PROTOCOL_TOKEN`, which is what it does without this,
// `ERNIC_PROTOCOL_RC_V2` or `ERNIC_PROTOCOL_AUTO`.
//
// # Safety
// A handle.
enum ErnicStatus ernic_session_set_protocol(const struct ErnicSession *session,
                                            uint32_t protocol);

// Whether the session has a device and the server has not declined its last transfer that asked for RDMA. False for NULL, and
// while another thread uses it.
//
// # Safety
// A handle or NULL.
bool ernic_session_rdma_available(const struct ErnicSession *session);

// Allocates a buffer of the session's size and registers it. It starts with a page and holds zeros.
//
// # Safety
// A handle; `buffer` is a place for the new one, to be given to `ernic_buffer_free` in the end.
enum ErnicStatus ernic_buffer_new(const struct ErnicSession *session, struct ErnicBuffer **buffer);

// Gives the registration up and the memory back; NULL is fine.
//
// # Safety
// A handle that is in nobody's use, or NULL. The pointer of `ernic_buffer_data` is worthless afterwards.
void ernic_buffer_free(struct ErnicBuffer *buffer);

// The buffer's memory, as many bytes as the session's size, to be filled and read in place while no transfer uses it. NULL if
// the buffer is NULL, or in use by another thread.
//
// # Safety
// A handle or NULL.
void *ernic_buffer_data(const struct ErnicBuffer *buffer);

// Bytes of the buffer; 0 if it is NULL, or in use by another thread.
//
// # Safety
// A handle or NULL.
uint64_t ernic_buffer_size(const struct ErnicBuffer *buffer);

// Copies `length` bytes to the buffer's byte `offset`.
//
// # Safety
// A handle; `bytes` has `length` bytes, none of them in the buffer.
enum ErnicStatus ernic_buffer_write(const struct ErnicBuffer *buffer,
                                    uint64_t offset,
                                    const void *bytes,
                                    uint64_t length);

// Copies `length` bytes from the buffer's byte `offset`.
//
// # Safety
// A handle; `bytes` has room for `length` bytes, none of it in the buffer.
enum ErnicStatus ernic_buffer_read(const struct ErnicBuffer *buffer, uint64_t offset, void *bytes, uint64_t length);

// Stores the first `length` bytes of the buffer as an object.
//
// # Safety
// Handles, C strings, and a place for the result or NULL.
enum ErnicStatus ernic_upload(const struct ErnicSession *session,
                              const char *bucket,
                              const char *key,
                              const struct ErnicBuffer *buffer,
                              uint64_t length,
                              struct ErnicTransfer *transfer);

// Fetches a whole object into the beginning of the buffer. `ERNIC_STATUS_TOO_LONG` if it has no room there.
//
// # Safety
// As of `ernic_upload`.
enum ErnicStatus ernic_download(const struct ErnicSession *session,
                                const char *bucket,
                                const char *key,
                                const struct ErnicBuffer *buffer,
                                struct ErnicTransfer *transfer);

// Fetches `length` bytes of an object from its byte `offset` on into the beginning of the buffer. All of them must be there.
//
// # Safety
// As of `ernic_upload`.
enum ErnicStatus ernic_download_range(const struct ErnicSession *session,
                                      const char *bucket,
                                      const char *key,
                                      uint64_t offset,
                                      uint64_t length,
                                      const struct ErnicBuffer *buffer,
                                      struct ErnicTransfer *transfer);

// Begins a multipart upload.
//
// # Safety
// A handle, C strings, and a place for the new handle, to be given to `ernic_upload_free` in the end.
enum ErnicStatus ernic_upload_create(const struct ErnicSession *session,
                                     const char *bucket,
                                     const char *key,
                                     struct ErnicUpload **upload);

// Stores the first `length` bytes of the buffer as part `number`, 1 to 10000.
//
// # Safety
// Handles, and a place for the result or NULL.
enum ErnicStatus ernic_upload_part(const struct ErnicSession *session,
                                   const struct ErnicUpload *upload,
                                   uint32_t number,
                                   const struct ErnicBuffer *buffer,
                                   uint64_t length,
                                   struct ErnicTransfer *transfer);

// Makes an object of the parts.
//
// # Safety
// Handles.
enum ErnicStatus ernic_upload_complete(const struct ErnicSession *session, const struct ErnicUpload *upload);

// Gives the upload up on the server, with all of its parts.
//
// # Safety
// Handles.
enum ErnicStatus ernic_upload_abort(const struct ErnicSession *session, const struct ErnicUpload *upload);

// Frees the handle; NULL is fine. Nothing changes on the server.
//
// # Safety
// A handle that is in nobody's use, or NULL.
void ernic_upload_free(struct ErnicUpload *upload);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ERNIC_S3_H */
