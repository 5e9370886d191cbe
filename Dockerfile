# The image of "latchkey manager": one static program, as a user that is not root. "make image" builds
# it from what "make release" has put into dist/.
FROM scratch
ARG TARGETARCH=amd64
COPY --chmod=0555 dist/latchkey-linux-${TARGETARCH} /latchkey
USER 65532:65532
ENTRYPOINT ["/latchkey"]
CMD ["manager"]
