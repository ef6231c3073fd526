/* An object to a server and back: sdk http://HOST:PORT BUCKET [DEVICE]. DEVICE is the name of an RDMA device, or "" for the first. */
#include <stdio.h>
#include <string.h>

#include "ernic_s3.h"

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, ernic_last_error());
	return 1;
}

int main(int argc, char **argv)
{
	static const char text[] = "hello, memory";
	ErnicSession *session = NULL;
	ErnicBuffer *buffer = NULL;
	ErnicTransfer transfer;
	int result = 1;

	if (argc < 3) {
		fprintf(stderr, "usage: sdk http://HOST:PORT BUCKET [DEVICE]\n");
		return 2;
	}
	/* Buffers of 1 MiB; without keys, requests are not signed. */
	if (ernic_session_new(argv[1], NULL, NULL, NULL, argc > 3 ? argv[3] : NULL, 1 << 20, &session))
		return failed("session");
	/* A connection for each transfer if the server makes them, a token if not. */
	if (ernic_session_set_protocol(session, ERNIC_PROTOCOL_AUTO)) {
		result = failed("protocol");
		goto close;
	}
	/* Registered here, and used for everything that follows. */
	if (ernic_buffer_new(session, &buffer)) {
		result = failed("buffer");
		goto close;
	}
	memcpy(ernic_buffer_data(buffer), text, 13);
	if (ernic_upload(session, argv[2], "greeting", buffer, 13, &transfer)) {
		result = failed("upload");
		goto free;
	}
	printf("%llu bytes by %s, etag %s\n", (unsigned long long)transfer.bytes,
	       transfer.carrier == ERNIC_CARRIER_RDMA ? "RDMA" : "HTTP", transfer.etag);
	if (ernic_download_range(session, argv[2], "greeting", 7, 6, buffer, &transfer)) {
		result = failed("download");
		goto free;
	}
	printf("%.6s\n", (const char *)ernic_buffer_data(buffer));
	result = 0;
free:
	ernic_buffer_free(buffer);
close:
	ernic_session_close(session);
	return result;
}
